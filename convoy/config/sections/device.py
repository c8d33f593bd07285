"""Where a process computes, and how the network is compiled for it."""

from dataclasses import dataclass

from convoy.config.option import free_option, option, when, where, without

one_device = where("device", "cpu", "mps")
loaders_are_not_shared = when(
    lambda run: run.device.instances > 1, "yet: every replica reads its own samples"
)


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where a process computes."""

    device: str = option("auto", "Kind of device.", choices=("auto", "cpu", "cuda", "mps"))
    threads: int = option(
        0,
        "Threads of each process on the CPU; 0 shares the cores. The bits depend on it.",
        between=(0, 512),
    )
    select_devices: tuple[int, ...] = free_option(
        (),
        "Numbers of the accelerators to use; unset: all.",
        at_least=0,
        also=("--select-ipus", "--select-ipu"),
        idle=one_device,
    )
    hosts: int = free_option(1, "Machines.", between=(1, 65536))
    instances: int = free_option(
        1,
        "Groups of replicas that share a loader.",
        between=(1, 65536),
        idle=loaders_are_not_shared,
    )
    exchange_memory_target: str = option(
        "balanced",
        "Speed or memory first.",
        choices=("balanced", "cycles", "memory"),
        cuda_only="lets cuDNN try its algorithms and keep the fastest, for cycles",
    )


@dataclass(frozen=True, kw_only=True)
class CompilerConfig:
    """How the network is made ready for its device."""

    compile: bool = option(
        False,
        "Compile each stage with torch.compile: a minute or more at the first start, faster "
        "passes, and other bits than without.",
    )
    compile_only: bool = free_option(
        False, "Make everything ready, do no update, and stop.", ready=(False,)
    )
    model_cache_path: str | None = free_option(
        None,
        "Folder of compiled stages; what lies there is not compiled again.",
        also=("--executable-cache-path",),
        idle=without("compile"),
    )
    force_recompile: bool = free_option(
        False, "Compile anew, whatever --model-cache-path holds.", idle=without("compile")
    )
    tmp_execs: bool = free_option(
        False,
        "Compile in a folder of its own within --model-cache-path, and remove it at the end.",
        idle=(without("compile"), without("model_cache_path")),
    )
    num_io_tiles: int = free_option(
        0,
        "Tiles of a device set apart for input and output.",
        at_least=0,
        no_counterpart="no device here has tiles; --prefetch-depth says how far the input "
        "runs ahead",
    )
    enable_conv_dithering: bool = free_option(
        False,
        "Spread convolutions over tiles by chance.",
        no_counterpart="no device here has tiles",
    )
    gather_conv_output: bool = free_option(
        False,
        "Gather the results of convolutions before small sums.",
        no_counterpart="no device here has tiles to gather from",
    )
    only_use_slic_vmac_16: bool = free_option(
        False,
        "Restrict the kernels of depthwise convolutions.",
        no_counterpart="those kernels are not on any other device",
    )
    scheduling_algorithm: str = free_option(
        "choose-best",
        "Order of instructions on the device.",
        choices=("choose-best", "clustering", "post-order", "look-ahead", "shortest-path"),
        no_counterpart="torch runs operations in the order of the network",
    )
    poplar_sync_configuration: str | None = free_option(
        None,
        "Groups of devices that wait for each other.",
        no_counterpart="processes wait for each other only where they exchange something",
    )
    offline_target_ipu_version: int | None = free_option(
        None,
        "Generation of the device to make ready for.",
        at_least=1,
        no_counterpart="networks are made ready for the device at hand",
    )
