"""Options of devices, processes and the pipeline."""

from dataclasses import dataclass

from convoy.config.fields import above, at_least, cuda_only, no_counterpart, not_yet, one_of, option


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """How one copy of the network is spread over devices."""

    shards: int | None = option(
        None, "Pipeline stages; unset follows the splits.", at_least(1, at_most=4096), free=True
    )
    pipeline_splits: tuple[str, ...] = option(
        (),
        "Layers that begin a new stage; none given: balanced by cost; list: shows them all.",
        free=True,
    )
    pipeline_schedule: str = option(
        "interleaved",
        "Order of forward and backward work.",
        one_of("grouped", "interleaved", "1f1b", "sequential", "zero-bubble", "looped"),
        free=True,
    )
    stages_per_device: int = option(
        1,
        "Stages on each device, one for each time around; for the looped schedule.",
        at_least(1, at_most=64),
        free=True,
    )
    device_mapping: tuple[int, ...] = option((), "Device of each stage.", at_least(0), free=True)
    sharding_include_filter: tuple[str, ...] = not_yet(
        option((), "Parts of names where balancing may begin a stage.", free=True)
    )
    sharding_exclude_filter: tuple[str, ...] = not_yet(
        option((), "Parts of names where balancing may not begin a stage.", free=True)
    )


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """What is kept, what is computed again, and where it lies."""

    enable_recompute: bool | None = option(
        None,
        "Keep only what comes into a stage and compute the rest again before its backward; "
        "unset: where there are several stages.",
        free=True,
    )
    recompute_checkpoints: tuple[str, ...] = option(
        (), "Layers (patterns of whole names) whose result recomputation keeps.", free=True
    )
    offload_optimizer: bool = option(
        False,
        "Keep the optimizer's state off the device between updates: in the host's memory, "
        "or in a file when the device is a CPU.",
        free=True,
    )
    min_remote_tensor_size: int = no_counterpart(
        option(
            128, "Smallest tensor worth keeping off the device, in bytes.", at_least(0), free=True
        ),
        "the state of all weights moves as one block",
    )
    enable_optimizer_rts: bool = option(
        False, "Each replica keeps its part of the optimizer's state alone (ZeRO-1).", free=True
    )
    accumulator_dtype: str = option(
        "auto",
        "Type of the sums of gradients; auto is that of the weights.",
        one_of("auto", "float64", "float32", "bfloat16", "float16"),
        also=("--gradient-accumulation-dtype",),
    )
    accumulator_dtype_rules: tuple[str, ...] = option(
        (),
        "Types of the sums of some parameters, as pattern=type (fc.*=float32); the first pattern "
        "that fits a name holds.",
    )
    gradient_reduction: str = option(
        "auto",
        "How the gradients of an update become one: their mean, a running mean that never grows, "
        "or their sum; auto: running where sums are float16, else the mean.",
        one_of("auto", "mean", "running-mean", "sum"),
    )
    available_memory_proportion: tuple[float, ...] = cuda_only(
        option(
            (),
            "Share of the device's memory for what convolutions need on the way; one for all "
            "stages, or one each.",
            above(0, at_most=1),
        ),
        "limits the workspace of cuDNN, which then chooses other algorithms",
    )


@dataclass(frozen=True, kw_only=True)
class ReplicaConfig:
    """How replicas come to one result."""

    reduction: str = option(
        "exact",
        "Sum over replicas: exact gives the bits of one replica, fast those of torch's all-reduce.",
        one_of("exact", "fast"),
    )
    overlap_reduction: bool = option(
        False,
        "Begin to exchange gradients during the last backward of an update. Never changes a bit.",
        free=True,
    )
    max_cross_replica_buffer_size: int = option(
        10 * 2**20,
        "Bytes of gradients on their way between replicas at most.",
        at_least(1024),
        free=True,
    )
    max_reduce_many_buffer_size: int = no_counterpart(
        option(0, "Bytes gathered before sums within a device are taken.", at_least(0), free=True),
        "sums within a device are taken at once",
    )
    gcl_method: str = cuda_only(
        option(
            "auto",
            "How replicas pass on their sums.",
            one_of(
                "auto",
                "broadcast",
                "clockwise_ring",
                "anticlockwise_ring",
                "bidirectional_ring_pair",
                "meet_in_middle_ring",
                "quad_directional_ring",
            ),
        ),
        "chooses NCCL's ring, or for broadcast its tree",
    )
    gcl_max_broadcast_size: int | None = no_counterpart(
        option(None, "Largest sum passed on by broadcast, in bytes.", at_least(0), free=True),
        "NCCL and gloo choose by size themselves",
    )
    bn_span: int = option(
        1,
        "Consecutive replicas that share the statistics of batch norm.",
        at_least(1, at_most=65536),
        also=("--BN-span",),
    )
