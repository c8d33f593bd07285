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
    """First layers of a ResNet."""
    shortcut_type: Literal["auto", "A", "B", "C", "first"]
    """Residual shortcut."""
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
    """Momentum of the running statistics of batch norm, as in torch.nn.BatchNorm2d."""
    zero_init_last_norm: bool
    """Initialize the weight of the last norm to zero in every bottleneck block without a …"""
    weight_init: Literal["pytorch", "tensorflow", "popart"]
    """Weight initialization as in Graphcore's PyTorch, TensorFlow or PopART example (pytorch …"""
    stable_norm: bool
    """Compute the variance in two passes, mean first."""
    enable_fast_groupnorm: bool
    """Interleave the groups of group norm: of G groups, channel c belongs to group c mod G."""
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
    """Folder of the dataset."""
    imagenet_data_path: str | PathLike[str] | None
    validation_share: float
    """Fraction of the images of each class to validate with, if the class folders are directly …"""
    image_size: int | None
    """Input image size in pixels."""
    num_classes: int | None
    """Number of classes."""
    samples: int | None
    """Number of training samples of shapes, generated and synthetic data."""
    dataset_percentage_to_use: int
    """Percentage of the training samples to use: a fixed subset, spread evenly over the …"""
    webdataset_percentage_to_use: int
    augment: bool
    """Apply random crops and flips, if the dataset supports them."""
    crop_rule: Literal["pytorch", "tensorflow"]
    """Scale of random resized crops (imagenet only), as in Graphcore's examples: pytorch 8–100 …"""
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
    """Number of samples that a worker prepares at a time."""
    dataset_cache: bool
    """Cache samples in memory: encoded files for imagenet, rendered images for shapes."""
    dataset_cache_mb: int
    """Maximum size of the sample cache of each process, in megabytes."""
    webdataset_memory_cache_ratio: float | None
    """Fraction of the encoded samples to cache, instead of --dataset-cache-mb."""
    bad_records: Literal["error", "skip"]
    """What to do with a record that cannot be read: stop with an error, or skip it and use …"""
    max_bad_records: int
    """Maximum number of bad records to skip; the run stops if there are more."""
    seed: int
    """Seed of all random numbers."""
    mixup_alpha: float
    """Alpha of mixup; 0 disables mixup."""
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
    """Batch size of a forward and backward pass on one replica."""
    batch_size: int
    gradient_accumulation: int
    """Number of micro-batches per replica and optimizer step."""
    replicas: int
    """Number of data-parallel replicas of the network."""
    device_iterations: int
    """Maximum number of updates between checks for stop signals."""
    epoch: float | None
    """Number of epochs to train."""
    epochs: float | None
    updates: int | None
    """Number of updates (optimizer steps) to train, instead of --epochs."""
    stop_after: int | None
    """Save a checkpoint and stop after this update (exit code 75)."""
    epochs_before: float
    """Number of epochs that the initial weights were trained for."""
    start_epoch: float
    lr: float | None
    """Base learning rate, which warm-up and the schedule scale."""
    base_learning_rate_exponent: float | None
    """Set the learning rate to 2^N × samples per update, instead of --lr."""
    lr_schedule: Literal["step", "cosine", "exponential", "polynomial"]
    """Learning rate schedule."""
    lr_decay: float
    """Multiplicative factor of learning rate decay (gamma in PyTorch): per milestone for step …"""
    lr_epoch_decay: Sequence[float]
    """Milestones of the step schedule, in epochs."""
    lr_share_decay: Sequence[float]
    """Milestones of the step schedule, as fractions of the training length."""
    lr_multipliers: Sequence[float]
    """Learning rates of the step schedule as multiples of --lr: the first one, then one per …"""
    lr_drops: int | None
    """Number of learning rate changes during training, instead of --lr-scheduler-freq."""
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
    """Parameters excluded from weight decay: vectors (norms and biases), norms, or nothing."""
    weight_decay_exclude: Literal["vectors", "norms", "nothing"]
    rmsprop_decay: float
    """Smoothing constant of RMSprop (alpha in PyTorch)."""
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
    """Amount of label smoothing."""
    label_smoothing_over: Literal["all", "others"]
    """Classes that receive the smoothed part of the target: all, or only the incorrect ones …"""
    loss_scaling: float
    """Loss scale."""
    initial_loss_scaling: float | None
    """Initial loss scale."""
    auto_loss_scaling: bool
    """Adjust the loss scale automatically: start with --loss-scaling, lower it when 16-bit …"""
    on_nonfinite: Literal["stop", "skip"]
    """What to do if the loss or a gradient is not finite: stop before the update, or skip it."""
    max_skipped: int
    """Maximum number of consecutive updates to skip with --on-nonfinite skip; the run stops if …"""
    precision: Literal["16.16", "16.32", "32.32"]
    """Bits of the arithmetic and of the stored weights."""
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
    """How the gradients of an update are combined: mean, running-mean (which cannot overflow) …"""
    available_memory_proportion: Sequence[float]
    """Fraction of the device memory for the workspace of convolutions: one value for all …"""
    reduction: Literal["exact", "fast"]
    """Gradient reduction over replicas: exact is bit-identical to training with one replica …"""
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
    """CPU threads per process; 0 takes OMP_NUM_THREADS, or divides the cores that affinity and …"""
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
    """Folder of compiled stages, which are loaded from there instead of being compiled again."""
    executable_cache_path: str | PathLike[str] | None
    force_recompile: bool
    """Compile again even if --model-cache-path contains the compiled stages."""
    tmp_execs: bool
    """Compile in a temporary folder inside --model-cache-path, which is removed at the end."""
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
    """Folder of the run."""
    output: str | PathLike[str] | None
    init_path: str | PathLike[str] | None
    """Initialize the weights from a checkpoint, or from the newest valid checkpoint of a run."""
    pretrained: str | PathLike[str] | None
    """Pretrained weights: a file with torchvision or timm keys, or hf:OWNER/NAME."""
    ckpts_per_epoch: int
    """Checkpoints per epoch; 0 writes none."""
    epochs_per_ckpt: int
    """Epochs between checkpoints; 0 uses --ckpts-per-epoch."""
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
    """Decay of an exponential moving average (EMA) of the weights, which is updated at every …"""
    validation_mode: Literal["none", "during", "after"]
    """Validate during training, only after it, or never (none)."""
    validation_frequency: int
    """Epochs between validations, with --validation-mode during."""
    valid_batch_size: int
    """Batch size for validation."""
    random_weights: bool
    """Validate a newly initialized network; `convoy validate` then needs no run."""
    repeat: int
    """Number of times `convoy validate` repeats the validation."""
    latency: bool
    """Report the latency of a batch in `convoy validate`: mean and 99th percentile."""
    backend: Literal["torch", "compiled", "onnxruntime"]
    """Inference backend of `convoy validate`: torch, torch.compile (compiled), or ONNX Runtime …"""
    num_inference_thread: int
    """Number of threads in `convoy validate` that request predictions concurrently."""
    logs_per_epoch: int | None
    """Progress reports per epoch; 0 reports only at the end."""
    log_freq: int | None
    """Updates between progress reports, instead of --logs-per-epoch."""
    log_dir: str | PathLike[str]
    """Parent folder of new run folders."""
    name: str | None
    """Name of the run folder."""
    name_suffix: str | None
    """Suffix of the name of the run folder."""
    progress: Literal["auto", "rich", "plain", "none"]
    """Progress display."""
    logs: bool
    """Write a run folder."""
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
    """Network; `convoy models` lists them, and `package.module:function` selects your own."""
    data: str
    """Dataset; `package.module:function` selects your own."""
