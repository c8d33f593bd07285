"""The options of a run as keyword arguments.

Written by tools/write_docs.py from the option table. `None` unsets an option, and
`convoy options NAME` describes one in full.
"""

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict


class RunOptions(TypedDict, total=False):
    """Keyword arguments of `convoy.train` and other functions."""

    resnet_version: Literal["v1.5", "v1"]
    """Where a bottleneck block downsamples: v1.5 in its 3×3 convolution, v1 in its first …"""
    stem: Literal["auto", "small", "large"]
    """First layers of a ResNet: small (a 3×3 convolution) for small images, large (a 7×7 …"""
    shortcut_type: Literal["auto", "A", "B", "C", "first"]
    """Residual shortcut: A zero-pads the channels, B projects where the shape changes, C …"""
    conv_padding: Literal["symmetric", "same"]
    """Padding of strided layers: symmetric (PyTorch), or same (TensorFlow SAME: an odd pixel …"""
    input_image_padding: bool
    """Add a fourth channel of zeros to the input images."""
    norm_type: Literal["batch", "group", "none"]
    """Normalization layer after each convolution."""
    norm_num_groups: int
    """Number of groups in group norm."""
    norm_eps: float
    """Epsilon added to the variance in normalization layers."""
    batchnorm_momentum: float
    """Weight of a micro-batch's statistics in the running statistics of batch norm, as in …"""
    zero_init_last_norm: bool
    """Initialize the scale of the last norm to zero in every bottleneck block without a …"""
    weight_init: Literal["pytorch", "tensorflow", "popart"]
    """Weight initialization as in Graphcore's PyTorch, TensorFlow or PopART example (pytorch …"""
    stable_norm: bool
    """Compute the variance in two passes, mean first."""
    enable_fast_groupnorm: bool
    """Assign channels to the groups of group norm in turn: channel c belongs to group c mod G."""
    full_precision_norm: bool
    """Keep the weights and biases of normalization layers in 32 bits in a 16-bit network."""
    cardinality: int
    """Number of groups in the 3×3 convolutions of ResNeXt."""
    group_dim: int | None
    """Channels per group in grouped convolutions."""
    efficientnet_group_dim: int | None
    expand_ratio: int
    """Expansion ratio of EfficientNet's blocks 2 to 7."""
    efficientnet_expand_ratio: int
    widenet: bool
    """Make the filters of a small ResNeXt four times as wide."""
    dropout_rate: float | None
    """Dropout probability before the classifier."""
    block_survival_prob: float
    """Stochastic depth in EfficientNet: survival probability of the last block."""
    squeeze_excite: bool
    """Use squeeze-and-excitation in the blocks of EfficientNet."""
    depth_divisor: int
    """Round the layer widths of EfficientNet to a multiple of this number."""
    top_width: int
    """Channels of EfficientNet's last convolution before width scaling; 0 removes that layer."""
    use_relu: bool
    """Use ReLU instead of swish (SiLU) in EfficientNet."""
    width_coefficient: float | None
    """Width multiplier of EfficientNet."""
    depth_coefficient: float | None
    """Depth multiplier of EfficientNet."""
    use_bypass: bool
    """Add identity shortcuts around the fire modules 3, 5, 7 and 9 of SqueezeNet."""
    proxy_norm: bool
    """Apply proxy normalization to the activations of EfficientNet."""
    proxy_epsilon: float
    """Epsilon added to the variance in proxy normalization."""
    proxy_recompute: bool
    """Recompute proxy normalization in the backward pass instead of storing its activations."""
    data_dir: str | PathLike[str] | None
    """Directory of the dataset."""
    imagenet_data_path: str | PathLike[str] | None
    image_size: int | None
    """Width and height of the input images in pixels."""
    num_classes: int | None
    """Number of classes."""
    samples: int | None
    """Number of training samples, for shapes, generated and synthetic data."""
    dataset_percentage_to_use: int
    """Percentage of the training samples to use: a fixed subset, spread evenly over the …"""
    webdataset_percentage_to_use: int
    augment: bool
    """Apply random crops and flips, if the dataset supports them."""
    crop_rule: Literal["pytorch", "tensorflow"]
    """Area of random crops from imagenet, as in Graphcore's example of that name: pytorch …"""
    use_bbox_info: bool
    """Redraw random crops that miss the bounding box of the object (imagenet only)."""
    normalization_location: Literal["host", "device", "none"]
    """Where pixels are normalized."""
    normalize_std: bool
    """Divide by the standard deviation when normalizing."""
    eight_bit_io: bool
    """Transfer images to the device as uint8 and normalize them there."""
    dataloader_worker: int | None
    """Number of workers that prepare images; 0 prepares them in the training loop."""
    pipeline_num_parallel: int | None
    num_workers: int | None
    prefetch_depth: int
    """Number of micro-batches to prepare ahead."""
    dataloader_kind: Literal["threads", "processes"]
    """Run the data workers as threads or as processes."""
    dataloader_rebatch_size: int | None
    """Number of samples a worker prepares at a time."""
    dataset_cache: bool
    """Cache samples in memory: encoded files for imagenet, rendered images for shapes."""
    dataset_cache_mb: int
    """Maximum size of the sample cache of each process, in megabytes."""
    webdataset_memory_cache_ratio: float | None
    """Fraction of the encoded samples to cache, instead of --dataset-cache-mb."""
    bad_records: Literal["error", "skip"]
    """What to do with a record that cannot be read: stop with an error, or skip it and use …"""
    max_bad_records: int
    """Maximum number of bad records to skip; one more stops the run."""
    seed: int
    """Seed of all random numbers."""
    mixup_alpha: float
    """Mixup with mixing weights from Beta(α, α); 0 disables mixup."""
    cutmix_lambda_low: float
    """CutMix: smallest fraction of an image to keep."""
    cutmix_lambda_high: float
    """CutMix: largest fraction of an image to keep."""
    cutmix_version: int | None
    """How CutMix chooses the fraction to keep: 1 draws it around the lower bound, 2 always …"""
    cutmix_disable_prob: float
    """Probability that CutMix leaves a micro-batch unchanged."""
    hostside_image_mixing: bool
    """Apply mixup and CutMix on the host instead of the device."""
    micro_batch_size: int
    """Samples per forward and backward pass of one replica."""
    batch_size: int
    gradient_accumulation: int
    """Micro-batches per replica to accumulate gradients over before each weight update."""
    replicas: int
    """Number of data-parallel replicas of the network, each with its own samples."""
    device_iterations: int
    """Updates in a loop: signals are checked before each loop, which ends early at a report …"""
    epoch: float | None
    """Number of epochs to train."""
    epochs: float | None
    updates: int | None
    """Number of weight updates to train, instead of --epoch."""
    stop_after: int | None
    """Save a checkpoint and stop after this update (exit code 75)."""
    epochs_before: float
    """Epochs that the initial weights have been trained for."""
    lr: float | None
    """Initial learning rate."""
    base_learning_rate_exponent: float | None
    """Set the learning rate to 2^N × samples per update, instead of --lr."""
    lr_schedule: Literal["step", "cosine", "exponential", "polynomial"]
    """Learning rate schedule."""
    lr_decay: float
    """Multiplicative factor of learning rate decay (gamma in PyTorch): per milestone for step …"""
    lr_epoch_decay: Sequence[float]
    """Epochs at which the step schedule drops the learning rate."""
    lr_share_decay: Sequence[float]
    """Fractions of the whole run at which the step schedule drops the learning rate."""
    lr_multipliers: Sequence[float]
    """Learning rates of the step schedule as multiples of --lr: the initial one, then one per …"""
    lr_drops: int | None
    """Number of learning rate changes in the whole run, instead of --lr-scheduler-freq."""
    lr_scheduler_freq: float
    """Learning rate changes per epoch; 0 changes it at every update."""
    warmup_epoch: float
    """Epochs of linear learning rate warm-up."""
    poly_lr_decay_power: float
    """Exponent of the polynomial schedule."""
    poly_lr_end_ratio: float
    """Final learning rate of the polynomial schedule as a fraction of --lr."""
    abs_end_learning_rate: float | None
    """Final learning rate of the polynomial schedule, instead of --poly-lr-end-ratio."""
    optimizer: Literal["sgd", "sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars"]
    """Optimizer."""
    momentum: float
    """Momentum factor; 0 disables momentum."""
    weight_decay: float
    """Weight decay (L2 penalty)."""
    weight_decay_spares: Literal["vectors", "norms", "nothing"]
    """Parameters without weight decay: all vectors (norms and biases), norms only, or none …"""
    rmsprop_decay: float
    """Smoothing constant of RMSprop's running mean square (alpha in PyTorch)."""
    rmsprop_base_decay_exp: float | None
    """Set the smoothing constant of RMSprop to 1 − 2^N × samples per update, instead of …"""
    optimizer_eps: float
    """Epsilon added to the denominator in RMSprop and AdamW."""
    lars_epsilon: float
    """Epsilon added to the denominator in LARS."""
    lars_eeta: float
    """Trust coefficient of LARS."""
    lars_weight_decay: float | None
    """Weight decay inside LARS, of every parameter that LARS scales."""
    lars_skip_list: Sequence[str]
    """Parameters that LARS does not scale, given as substrings of parameter names; gamma and …"""
    loss_velocity_scaling_ratio: float
    """Loss scale divided by the scale of the momentum buffer in sgd_combined."""
    optimizer_state_dtype: Literal["float32", "weights", "float16", "bfloat16"]
    """Dtype of the optimizer state."""
    variable_filter: Sequence[str]
    """Train only parameters whose names contain one of these strings."""
    gradient_mean_reduce_re: Sequence[str]
    """Regular expressions that match whole parameter names."""
    label_smoothing: float
    """Label smoothing: fraction of the target that is spread evenly over the classes."""
    label_smoothing_over: Literal["all", "others"]
    """Classes that label smoothing spreads over: all, or only the incorrect ones (others)."""
    loss_scaling: float
    """Loss scale."""
    initial_loss_scaling: float | None
    """Initial loss scale."""
    auto_loss_scaling: bool
    """Adjust the loss scale automatically: start with --loss-scaling, lower it when 16-bit …"""
    on_nonfinite: Literal["stop", "skip"]
    """What to do if the loss or a gradient is not finite: stop before the update, or skip it."""
    max_skipped: int
    """Maximum number of consecutive updates to skip with --on-nonfinite skip; one more stops …"""
    precision: Literal["16.16", "16.32", "32.32"]
    """Bit width of compute and of stored weights: 16.32 computes in 16 bits and stores weights …"""
    half_type: Literal["float16", "bfloat16"]
    """16-bit floating-point type."""
    half_arithmetic: Literal["auto", "native", "emulated"]
    """16-bit arithmetic: native, or emulated (fp32 with rounded results)."""
    half_partial: bool
    """Accumulate convolutions and matrix products in 16 bits: natively on CUDA, or with …"""
    enable_stochastic_rounding: bool
    """Use stochastic rounding when storing updated 16-bit weights and optimizer state."""
    enable_fp_exceptions: bool
    """Stop at the first layer that produces a non-finite value, even if all gradients are …"""
    saturate_on_overflow: bool
    """Clip 16-bit gradients to the largest finite value instead of letting them overflow."""
    force_weight_to_fp16: Sequence[str]
    """Parameters to store and use in 16 bits, given as substrings of parameter names."""
    force_weight_to_fp32: Sequence[str]
    """Parameters to store in 32 bits, given as substrings of parameter names."""
    offload_fp32_weight_copy: bool
    """Keep fp32 master copies of 16-bit weights with the optimizer state."""
    half_res_training: bool
    """Train on smaller images first (5/7 of the size, 160 instead of 224 pixels), then …"""
    fine_tune_epoch: int
    """Number of fine-tuning epochs."""
    fine_tune_lr: float
    """Initial learning rate of fine-tuning, with cosine decay."""
    fine_tune_micro_batch_size: int
    """Micro-batch size during fine-tuning."""
    fine_tune_batch_size: int
    fine_tune_gradient_accumulation: int
    """Micro-batches per replica and weight update during fine-tuning."""
    fine_tune_first_trainable_layer: str | None
    """First layer to train; the layers before it keep their weights and norm statistics."""
    shards: int | None
    """Number of pipeline stages."""
    pipeline_splits: Sequence[str]
    """Layers that start a new pipeline stage."""
    pipeline_schedule: Literal[
        "grouped", "interleaved", "1f1b", "sequential", "zero-bubble", "looped"
    ]
    """Pipeline schedule."""
    stages_per_device: int
    """Pipeline stages on each device, for the looped schedule."""
    device_mapping: Sequence[int]
    """Device index of each pipeline stage."""
    sharding_include_filter: Sequence[str]
    """Layers where automatic balancing may start a stage, given as substrings of layer names."""
    sharding_exclude_filter: Sequence[str]
    """Layers where automatic balancing may not start a stage, given as substrings of layer …"""
    enable_recompute: bool | None
    """Activation checkpointing: keep only the inputs of each stage and recompute the other …"""
    recompute_checkpoints: Sequence[str]
    """Layers whose outputs are kept when activations are recomputed, as regular expressions …"""
    offload_optimizer: bool
    """Keep the optimizer state off the device between updates: in host memory, or in a file if …"""
    min_remote_tensor_size: int
    """Smallest tensor to offload, in bytes."""
    enable_optimizer_rts: bool
    """Shard the optimizer state across replicas (ZeRO-1)."""
    accumulator_dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"]
    """Dtype of accumulated gradients."""
    gradient_accumulation_dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"]
    accumulator_dtype_rules: Sequence[str]
    """Dtypes of the accumulated gradients of some parameters, as PATTERN=DTYPE (fc.*=float32)."""
    gradient_reduction: Literal["auto", "mean", "running-mean", "sum"]
    """How the gradients of an update are combined: mean, running-mean (which never exceeds the …"""
    available_memory_proportion: Sequence[float]
    """Fraction of the device memory for the workspace of convolutions: one value for all …"""
    reduction: Literal["exact", "fast"]
    """Gradient reduction over replicas: exact gives the same bits as one replica, fast uses …"""
    overlap_reduction: bool
    """Overlap the gradient reduction with the last backward pass of an update."""
    max_cross_replica_buffer_size: int
    """Maximum size of the gradients in flight between replicas, in bytes."""
    max_reduce_many_buffer_size: int
    """Bytes to collect before a reduction within a device."""
    gcl_method: Literal[
        "auto",
        "broadcast",
        "clockwise_ring",
        "anticlockwise_ring",
        "bidirectional_ring_pair",
        "meet_in_middle_ring",
        "quad_directional_ring",
    ]
    """Collective algorithm of the gradient reduction."""
    gcl_max_broadcast_size: int | None
    """Largest reduction that uses broadcast, in bytes."""
    bn_span: int
    """Number of consecutive replicas that share batch norm statistics (synchronized batch …"""
    BN_span: int
    device: Literal["auto", "cpu", "cuda", "mps"]
    """Device type."""
    threads: int
    """CPU threads per process; 0 divides the cores among the processes."""
    select_devices: Sequence[int]
    """Indices of the accelerators to use."""
    select_ipus: Sequence[int]
    select_ipu: Sequence[int]
    hosts: int
    """Number of machines."""
    instances: int
    """Number of instances: groups of replicas that share a data loader."""
    exchange_memory_target: Literal["balanced", "cycles", "memory"]
    """Optimize for speed (cycles), for memory, or for both."""
    compile: bool
    """Compile each pipeline stage with torch.compile."""
    compile_only: bool
    """Prepare everything, then stop before the first update."""
    model_cache_path: str | PathLike[str] | None
    """Directory of compiled stages, which are loaded from there instead of being compiled …"""
    executable_cache_path: str | PathLike[str] | None
    force_recompile: bool
    """Compile again even if --model-cache-path contains the compiled stages."""
    tmp_execs: bool
    """Compile in a temporary subdirectory of --model-cache-path, which is removed at the end."""
    num_io_tiles: int
    """IPU tiles reserved for input and output."""
    enable_conv_dithering: bool
    """Spread convolutions randomly over IPU tiles."""
    gather_conv_output: bool
    """Gather the outputs of convolutions on the IPU before small reductions."""
    only_use_slic_vmac_16: bool
    """Restrict the IPU kernels of depthwise convolutions."""
    scheduling_algorithm: Literal[
        "choose-best", "clustering", "post-order", "look-ahead", "shortest-path"
    ]
    """Instruction scheduling of the IPU compiler."""
    poplar_sync_configuration: str | None
    """Groups of IPUs that synchronize with each other."""
    offline_target_ipu_version: int | None
    """IPU generation to compile for."""
    checkpoint_output_path: str | PathLike[str] | None
    """Run directory."""
    output: str | PathLike[str] | None
    init_path: str | PathLike[str] | None
    """Initialize the weights from the newest valid checkpoint of this run, or from this …"""
    pretrained: str | PathLike[str] | None
    """Initialize with pretrained weights that have torchvision or timm state_dict keys: a file …"""
    ckpts_per_epoch: int
    """Checkpoints per epoch; 0 writes none."""
    epochs_per_ckpt: int
    """Epochs between two checkpoints; 0 uses --ckpts-per-epoch."""
    checkpoint_save_freq: int
    ckpt_epochs_offset: int | None
    """Epochs before the first checkpoint."""
    keep_last: int
    """Number of newest checkpoints to keep; 0 keeps all."""
    max_ckpts_to_keep: int
    on_save_error: Literal["stop", "continue"]
    """What to do if a checkpoint cannot be written: stop, or continue training."""
    weight_avg_strategy: Literal["none", "mean", "exponential"]
    """How to average the checkpoints when training ends."""
    weight_avg_n: int
    """Number of newest checkpoints to average; -1 or 0 averages all."""
    weight_avg_N: int
    weight_avg_exp_decay: float
    """Decay of the exponential average over checkpoints."""
    norm_statistics: Literal["recompute", "average", "keep"]
    """Running statistics of averaged weights: recompute them on the training data, average …"""
    ema_decay: float
    """Decay of an exponential moving average (EMA) of the weights, updated at every step …"""
    validation_mode: Literal["none", "during", "after"]
    """Validate during training, only after it, or never (none)."""
    validation_frequency: int
    """Epochs between validations, with --validation-mode during."""
    valid_batch_size: int
    """Batch size of validation."""
    random_weights: bool
    """Validate a newly initialized network; `convoy validate` then needs no run."""
    repeat: int
    """Number of times `convoy validate` validates the same weights."""
    latency: bool
    """Report the latency of a batch in `convoy validate`: mean and 99th percentile."""
    backend: Literal["torch", "compiled", "onnxruntime"]
    """Inference backend of `convoy validate`: torch, torch.compile (compiled), or ONNX Runtime …"""
    num_inference_thread: int
    """Number of threads in `convoy validate` that request predictions concurrently."""
    logs_per_epoch: int | None
    """Progress reports per epoch; 0 reports only at the end."""
    log_freq: int | None
    """Updates between two progress reports, instead of --logs-per-epoch."""
    log_dir: str | PathLike[str]
    """Parent directory of new run directories."""
    name: str | None
    """Name of the run directory."""
    name_suffix: str | None
    """Suffix of the name of the run directory."""
    progress: Literal["auto", "rich", "plain", "none"]
    """Progress display."""
    logs: bool
    """Write a run directory."""
    disable_metrics: bool
    """Do not compute loss and accuracy for reports, to measure the highest speed."""
    analyze_nans: bool
    """Count the NaN values in each checkpoint and send the counts to Weights & Biases."""
    analyse_nans: bool
    mlperf_logging: bool
    """Write the events of the MLPerf rules to a separate file."""
    profile: bool
    """Write a trace of one update to a file, then stop."""
    profile_compilation: bool
    """Trace the compilation of the network, then stop."""
    wandb: bool
    """Send reports to Weights & Biases."""
    wandb_project: str
    """Weights & Biases project that receives the reports."""
    wandb_id: str | None
    """Weights & Biases run to continue."""
    wandb_weight_histogram: bool
    """Also send histograms of the weights to Weights & Biases."""


class NamedOptions(RunOptions, total=False):
    """The same, with a network and a dataset by name."""

    model: str
    """Network; `convoy models` lists them, and `package.module:function` names your own."""
    data: str
    """Dataset; `package.module:function` names your own."""
