"""Options of where a process computes, and how a network is made ready there."""

from dataclasses import dataclass

from convoy.config.fields import at_least, cuda_only, no_counterpart, not_yet, one_of, option


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where a process computes."""

    device: str = option("auto", "Kind of device.", one_of("auto", "cpu", "cuda", "mps"))
    threads: int = option(
        0,
        "Threads of each process on the CPU; 0 shares the cores. The bits depend on it.",
        at_least(0, at_most=512),
    )
    select_devices: tuple[int, ...] = option(
        (),
        "Numbers of the accelerators to use; unset: all.",
        at_least(0),
        also=("--select-ipus", "--select-ipu"),
        free=True,
    )
    hosts: int = option(1, "Machines.", at_least(1, at_most=65536), free=True)
    instances: int = option(
        1, "Groups of replicas that share a loader.", at_least(1, at_most=65536), free=True
    )
    exchange_memory_target: str = cuda_only(
        option(
            "balanced",
            "Speed or memory first.",
            one_of("balanced", "cycles", "memory"),
        ),
        "lets cuDNN try its algorithms and keep the fastest, for cycles",
    )


@dataclass(frozen=True, kw_only=True)
class CompilerConfig:
    """How the network is made ready for its device."""

    compile: bool = option(
        False,
        "Compile each stage with torch.compile: a minute or more at the first start, faster "
        "passes, and other bits than without.",
    )
    compile_only: bool = not_yet(
        option(False, "Make everything ready, do no update, and stop.", free=True)
    )
    model_cache_path: str | None = option(
        None,
        "Folder of compiled stages; what lies there is not compiled again.",
        also=("--executable-cache-path",),
        free=True,
    )
    force_recompile: bool = option(
        False, "Compile anew, whatever --model-cache-path holds.", free=True
    )
    tmp_execs: bool = option(
        False,
        "Compile in a folder of its own within --model-cache-path, and remove it at the end.",
        free=True,
    )
    num_io_tiles: int = no_counterpart(
        option(0, "Tiles of a device set apart for input and output.", at_least(0), free=True),
        "no device here has tiles; --prefetch-depth says how far the input runs ahead",
    )
    enable_conv_dithering: bool = no_counterpart(
        option(False, "Spread convolutions over tiles by chance.", free=True),
        "no device here has tiles",
    )
    gather_conv_output: bool = no_counterpart(
        option(False, "Gather the results of convolutions before small sums.", free=True),
        "no device here has tiles to gather from",
    )
    only_use_slic_vmac_16: bool = no_counterpart(
        option(False, "Restrict the kernels of depthwise convolutions.", free=True),
        "those kernels are not on any other device",
    )
    scheduling_algorithm: str = no_counterpart(
        option(
            "choose-best",
            "Order of instructions on the device.",
            one_of("choose-best", "clustering", "post-order", "look-ahead", "shortest-path"),
            free=True,
        ),
        "torch runs operations in the order of the network",
    )
    poplar_sync_configuration: str | None = no_counterpart(
        option(None, "Groups of devices that wait for each other.", free=True),
        "processes wait for each other only where they exchange something",
    )
    offline_target_ipu_version: int | None = no_counterpart(
        option(None, "Generation of the device to make ready for.", at_least(1), free=True),
        "networks are made ready for the device at hand",
    )
