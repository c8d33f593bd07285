"""How the network is spread over devices: pipeline stages, memory, replicas."""

from dataclasses import dataclass

from convoy.config.option import Run, free_option, option, when
from convoy.config.sections.device import one_device
from convoy.config.sections.optimizer import no_state_and_no_copy, one_micro_batch

one_replica = when(lambda run: run.batch.replicas == 1, "with one replica")
# Stages that share a device run as one; only recomputation knows where they begin.
folded_without_recompute = when(
    lambda run: run.pipeline.folds_into_one and run.memory.enable_recompute is False,
    "on one device with --no-enable-recompute",
)


def mapping_without_devices(run: Run) -> str | None:
    """All processes share the one device there is, but a mapping may still fold stages."""
    by_mapping = run.pipeline.folds_into_one and run.pipeline.shards != 1
    return None if by_mapping else one_device(run)


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """How one copy of the network is spread over devices."""

    shards: int | None = free_option(
        None, "Pipeline stages; unset follows the splits.", between=(1, 4096)
    )
    pipeline_splits: tuple[str, ...] = free_option(
        (),
        "Layers that begin a new stage; none given: balanced by cost; list: shows them all.",
        idle=folded_without_recompute,
    )
    pipeline_schedule: str = free_option(
        "interleaved",
        "Order of forward and backward work.",
        choices=("grouped", "interleaved", "1f1b", "sequential", "zero-bubble", "looped"),
        idle=when(lambda run: run.pipeline.stages == 1, "with one stage"),
    )
    stages_per_device: int = free_option(
        1,
        "Stages on each device, one for each time around; for the looped schedule.",
        between=(1, 64),
    )
    device_mapping: tuple[int, ...] = free_option(
        (), "Device of each stage.", at_least=0, idle=mapping_without_devices
    )
    sharding_include_filter: tuple[str, ...] = free_option(
        (), "Parts of names where balancing may begin a stage.", ready=((),)
    )
    sharding_exclude_filter: tuple[str, ...] = free_option(
        (), "Parts of names where balancing may not begin a stage.", ready=((),)
    )

    @property
    def stages(self) -> int:
        """The stages asked for: as many as the splits make; without any, as many as `shards`."""
        return len(self.pipeline_splits) + 1 if self.pipeline_splits else self.shards or 1

    @property
    def folds_into_one(self) -> bool:
        """Whether all stages take turns on one device: they would only wait for each other."""
        stages, mapping = self.stages, self.device_mapping
        share = self.shards == 1 or (len(mapping) == stages and len(set(mapping)) == 1)
        return self.pipeline_schedule == "sequential" and stages > 1 and share

    @property
    def planned_stages(self) -> int:
        """The stages of a pipeline, where those that share a device count as one."""
        return 1 if self.folds_into_one else self.stages


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """What is kept, what is computed again, and where it lies."""

    enable_recompute: bool | None = free_option(
        None,
        "Keep only what comes into a stage and compute the rest again before its backward; "
        "unset: where there are several stages.",
    )
    recompute_checkpoints: tuple[str, ...] = free_option(
        (), "Layers (patterns of whole names) whose result recomputation keeps."
    )
    offload_optimizer: bool = free_option(
        False,
        "Keep the optimizer's state off the device between updates: in the host's memory, "
        "or in a file when the device is a CPU.",
        idle=no_state_and_no_copy,
    )
    min_remote_tensor_size: int = free_option(
        128,
        "Smallest tensor worth keeping off the device, in bytes.",
        at_least=0,
        no_counterpart="the state of all weights moves as one block",
    )
    enable_optimizer_rts: bool = free_option(
        False,
        "Each replica keeps its part of the optimizer's state alone (ZeRO-1).",
        idle=(one_replica, no_state_and_no_copy),
    )
    accumulator_dtype: str = option(
        "auto",
        "Type of the sums of gradients; auto is that of the weights.",
        choices=("auto", "float64", "float32", "bfloat16", "float16"),
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
        choices=("auto", "mean", "running-mean", "sum"),
        idle=one_micro_batch,
    )
    available_memory_proportion: tuple[float, ...] = option(
        (),
        "Share of the device's memory for what convolutions need on the way; one for all "
        "stages, or one each.",
        above=0,
        at_most=1,
        cuda_only="limits the workspace of cuDNN, which then chooses other algorithms",
    )


@dataclass(frozen=True, kw_only=True)
class ReplicaConfig:
    """How replicas come to one result."""

    reduction: str = option(
        "exact",
        "Sum over replicas: exact gives the bits of one replica, fast those of torch's all-reduce.",
        choices=("exact", "fast"),
        idle=one_replica,
    )
    overlap_reduction: bool = free_option(
        False,
        "Begin to exchange gradients during the last backward of an update. Never changes a bit.",
        idle=one_replica,
    )
    max_cross_replica_buffer_size: int = free_option(
        10 * 2**20,
        "Bytes of gradients on their way between replicas at most.",
        at_least=1024,
        idle=one_replica,
    )
    max_reduce_many_buffer_size: int = free_option(
        0,
        "Bytes gathered before sums within a device are taken.",
        at_least=0,
        no_counterpart="sums within a device are taken at once",
    )
    gcl_method: str = option(
        "auto",
        "How replicas pass on their sums.",
        choices=(
            "auto",
            "broadcast",
            "clockwise_ring",
            "anticlockwise_ring",
            "bidirectional_ring_pair",
            "meet_in_middle_ring",
            "quad_directional_ring",
        ),
        cuda_only="chooses NCCL's ring, or for broadcast its tree",
    )
    gcl_max_broadcast_size: int | None = free_option(
        None,
        "Largest sum passed on by broadcast, in bytes.",
        at_least=0,
        no_counterpart="NCCL and gloo choose by size themselves",
    )
    bn_span: int = option(
        1,
        "Consecutive replicas that share the statistics of batch norm.",
        between=(1, 65536),
        also=("--BN-span",),
    )
