"""The options for devices, compilation, pipeline stages, memory and replicas."""

from dataclasses import dataclass
from functools import partial

from convoy.config.option import Run, condition, option, option_is, option_is_unset, runtime_option
from convoy.config.sections.training import no_state_and_no_master_weights, one_micro_batch

one_device = option_is("device", "cpu", "mps")
no_shared_loaders = condition(
    lambda run: run.device.instances > 1, "yet: every replica loads its own samples"
)
one_replica = condition(lambda run: run.batch.replicas == 1, "with one replica")
reduction_option = partial(runtime_option, inactive_when=one_replica)
compile_option = partial(runtime_option, inactive_when=option_is_unset("compile"))
# Stages that share a device run as one; their boundaries matter only for recomputation.
folded_without_recompute = condition(
    lambda run: run.pipeline.shares_one_device and run.memory.enable_recompute is False,
    "on one device with --no-enable-recompute",
)


def mapping_without_devices(run: Run) -> str | None:
    """There is only one device, but a mapping may still merge stages."""
    by_mapping = run.pipeline.shares_one_device and run.pipeline.shards != 1
    return None if by_mapping else one_device(run)


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Devices."""

    device: str = option("auto", "Device type.", choices=("auto", "cpu", "cuda", "mps"))
    threads: int = option(
        0,
        "CPU threads per process; 0 takes OMP_NUM_THREADS, or divides the cores that affinity and "
        "the CPU quota of the container allow among the processes. Results can differ in "
        "rounding.",
        between=(0, 512),
    )
    select_devices: tuple[int, ...] = runtime_option(
        (),
        "Indices of the accelerators to use. Default: all.",
        at_least=0,
        aliases=("--select-ipus", "--select-ipu"),
        inactive_when=one_device,
    )
    hosts: int = runtime_option(1, "Number of machines.", between=(1, 65536))
    instances: int = runtime_option(
        1,
        "Number of instances: groups of replicas that share a data loader.",
        between=(1, 65536),
        inactive_when=no_shared_loaders,
    )
    exchange_memory_target: str = option(
        "balanced",
        "Optimize for speed (cycles), for memory, or for both.",
        choices=("balanced", "cycles", "memory"),
        cuda_effect="enables cuDNN benchmarking with cycles, which selects the fastest algorithms",
    )


@dataclass(frozen=True, kw_only=True)
class CompilerConfig:
    """Compilation."""

    compile: bool = option(
        False,
        "Compile each pipeline stage with torch.compile. The first run takes a minute or more to "
        "compile; training is then faster. Results can differ by rounding error.",
    )
    compile_only: bool = runtime_option(
        False, "Prepare everything, then stop before the first update.", available_values=(False,)
    )
    model_cache_path: str | None = compile_option(
        None,
        "Folder of compiled stages, which are loaded from there instead of being compiled again.",
        aliases=("--executable-cache-path",),
    )
    force_recompile: bool = compile_option(
        False, "Compile again even if --model-cache-path contains the compiled stages."
    )
    tmp_execs: bool = runtime_option(
        False,
        "Compile in a temporary folder inside --model-cache-path, which is removed at the end.",
        inactive_when=(option_is_unset("compile"), option_is_unset("model_cache_path")),
    )
    num_io_tiles: int = runtime_option(
        0,
        "IPU tiles reserved for input and output.",
        at_least=0,
        no_counterpart="only IPUs have tiles; --prefetch-depth sets how far loading runs ahead",
    )
    enable_conv_dithering: bool = runtime_option(
        False,
        "Spread convolutions randomly over IPU tiles.",
        no_counterpart="only IPUs have tiles",
    )
    gather_conv_output: bool = runtime_option(
        False,
        "Gather the outputs of convolutions on the IPU before small reductions.",
        no_counterpart="only IPUs have tiles to gather from",
    )
    only_use_slic_vmac_16: bool = runtime_option(
        False,
        "Restrict the IPU kernels of depthwise convolutions.",
        no_counterpart="no other device has these kernels",
    )
    scheduling_algorithm: str = runtime_option(
        "choose-best",
        "Instruction scheduling of the IPU compiler.",
        choices=("choose-best", "clustering", "post-order", "look-ahead", "shortest-path"),
        no_counterpart="PyTorch runs operations in the order of the network",
    )
    poplar_sync_configuration: str | None = runtime_option(
        None,
        "Groups of IPUs that synchronize with each other.",
        no_counterpart="processes wait for each other only when they exchange tensors",
    )
    offline_target_ipu_version: int | None = runtime_option(
        None,
        "IPU generation to compile for.",
        at_least=1,
        no_counterpart="networks are compiled for the device in use",
    )


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """Pipeline parallelism."""

    shards: int | None = runtime_option(
        None,
        "Number of pipeline stages. Default: 1, or set by --pipeline-splits.",
        between=(1, 4096),
    )
    pipeline_splits: tuple[str, ...] = runtime_option(
        (),
        "Layers that start a new pipeline stage. Default: stages of balanced cost. With list, "
        "print all possible layers.",
        inactive_when=folded_without_recompute,
    )
    pipeline_schedule: str = runtime_option(
        "interleaved",
        "Pipeline schedule. interleaved and 1f1b are PyTorch's 1F1B (interleaved needs a multiple "
        "of the number of stages); looped is PyTorch's Interleaved1F1B; grouped keeps twice as "
        "many micro-batches in flight, sequential only one.",
        choices=("grouped", "interleaved", "1f1b", "sequential", "zero-bubble", "looped"),
        inactive_when=condition(lambda run: run.pipeline.stages == 1, "with one stage"),
    )
    stages_per_device: int = runtime_option(
        1,
        "Pipeline stages on each device, for the looped schedule.",
        between=(1, 64),
    )
    device_mapping: tuple[int, ...] = runtime_option(
        (),
        "Device index of each pipeline stage.",
        at_least=0,
        inactive_when=mapping_without_devices,
    )
    sharding_include_filter: tuple[str, ...] = runtime_option(
        (),
        "Layers where automatic balancing may start a stage, given as substrings of layer names.",
        available_values=((),),
    )
    sharding_exclude_filter: tuple[str, ...] = runtime_option(
        (),
        "Layers where automatic balancing may not start a stage, given as substrings of layer "
        "names.",
        available_values=((),),
    )

    @property
    def stages(self) -> int:
        """The requested number of stages: set by the splits, otherwise by `shards`."""
        return len(self.pipeline_splits) + 1 if self.pipeline_splits else self.shards or 1

    @property
    def shares_one_device(self) -> bool:
        """Whether all stages run in turn on one device, where they can be merged."""
        stages, mapping = self.stages, self.device_mapping
        share = self.shards == 1 or (len(mapping) == stages and len(set(mapping)) == 1)
        return self.pipeline_schedule == "sequential" and stages > 1 and share

    @property
    def planned_stages(self) -> int:
        """The number of pipeline stages after merging those that share a device."""
        return 1 if self.shares_one_device else self.stages


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """Memory and gradient accumulation."""

    enable_recompute: bool | None = runtime_option(
        None,
        "Activation checkpointing: keep only the inputs of each stage and recompute the other "
        "activations before its backward pass. Default: on with several stages.",
    )
    recompute_checkpoints: tuple[str, ...] = runtime_option(
        (),
        "Layers whose outputs are kept when activations are recomputed, as regular expressions "
        "that match the whole name.",
    )
    offload_optimizer: bool = runtime_option(
        False,
        "Keep the optimizer state off the device between updates: in host memory, or in a file if "
        "the device is the CPU.",
        inactive_when=no_state_and_no_master_weights,
    )
    min_remote_tensor_size: int = runtime_option(
        128,
        "Smallest tensor to offload, in bytes.",
        at_least=0,
        no_counterpart="the optimizer state is offloaded as one block",
    )
    enable_optimizer_rts: bool = runtime_option(
        False,
        "Shard the optimizer state across replicas (ZeRO-1).",
        inactive_when=(one_replica, no_state_and_no_master_weights),
    )
    accumulator_dtype: str = option(
        "auto",
        "Dtype of accumulated gradients. With auto, the dtype of the weights.",
        choices=("auto", "float64", "float32", "bfloat16", "float16"),
        aliases=("--gradient-accumulation-dtype",),
    )
    accumulator_dtype_rules: tuple[str, ...] = option(
        (),
        "Dtypes of the accumulated gradients of some parameters, as PATTERN=DTYPE (fc.*=float32). "
        "The first pattern that matches the name applies.",
    )
    gradient_reduction: str = option(
        "auto",
        "How the gradients of an update are combined: mean, running-mean (which cannot overflow), "
        "or sum. With auto, running-mean if they accumulate in float16, otherwise mean.",
        choices=("auto", "mean", "running-mean", "sum"),
        inactive_when=one_micro_batch,
    )
    available_memory_proportion: tuple[float, ...] = option(
        (),
        "Fraction of the device memory for the workspace of convolutions: one value for all "
        "stages, or one per stage.",
        above=0,
        at_most=1,
        cuda_effect="limits the workspace of cuDNN, which then chooses other algorithms",
    )


@dataclass(frozen=True, kw_only=True)
class ReplicaConfig:
    """Data parallelism."""

    reduction: str = option(
        "exact",
        "Gradient reduction over replicas: exact is bit-identical to training with one replica, "
        "fast uses PyTorch's all-reduce.",
        choices=("exact", "fast"),
        inactive_when=one_replica,
    )
    overlap_reduction: bool = reduction_option(
        False,
        "Overlap the gradient reduction with the last backward pass of an update. Does not change "
        "results.",
    )
    max_cross_replica_buffer_size: int = reduction_option(
        10 * 2**20,
        "Maximum size of the gradients in flight between replicas, in bytes.",
        at_least=1024,
    )
    max_reduce_many_buffer_size: int = runtime_option(
        0,
        "Bytes to collect before a reduction within a device.",
        at_least=0,
        no_counterpart="reductions within a device run at once",
    )
    gcl_method: str = option(
        "auto",
        "Collective algorithm of the gradient reduction.",
        choices=(
            "auto",
            "broadcast",
            "clockwise_ring",
            "anticlockwise_ring",
            "bidirectional_ring_pair",
            "meet_in_middle_ring",
            "quad_directional_ring",
        ),
        cuda_effect="selects NCCL's ring algorithm, or its tree algorithm for broadcast",
    )
    gcl_max_broadcast_size: int | None = runtime_option(
        None,
        "Largest reduction that uses broadcast, in bytes.",
        at_least=0,
        no_counterpart="NCCL and Gloo choose the algorithm by size",
    )
    bn_span: int = option(
        1,
        "Number of consecutive replicas that share batch norm statistics (synchronized batch "
        "norm).",
        between=(1, 65536),
        aliases=("--BN-span",),
    )
