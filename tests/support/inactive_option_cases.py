"""Options with and without effect: the requested values, the option, and the reported reason."""

from typing import Any

Values = dict[str, Any]
Case = tuple[Values, str, str]

STEP: Values = {"lr_schedule": "step", "lr_epoch_decay": (2.0, 4.0)}
SINGLE_DEVICE: Values = {"pipeline_splits": ("layer2",), "pipeline_schedule": "sequential"}
NO_VALIDATION: Values = {"data": "synthetic", "validation_mode": "none"}
NO_AVERAGE = "with --weight-avg-strategy none"

IPU_OPTIONS: list[tuple[str, str, Any]] = [
    ("min_remote_tensor_size", "--min-remote-tensor-size", 64),
    ("max_reduce_many_buffer_size", "--max-reduce-many-buffer-size", 216),
    ("gcl_max_broadcast_size", "--gcl-max-broadcast-size", 64),
    ("num_io_tiles", "--num-io-tiles", 32),
    ("enable_conv_dithering", "--enable-conv-dithering", True),
    ("gather_conv_output", "--gather-conv-output", True),
    ("only_use_slic_vmac_16", "--only-use-slic-vmac-16", True),
    ("scheduling_algorithm", "--scheduling-algorithm", "clustering"),
    ("poplar_sync_configuration", "--poplar-sync-configuration", "all"),
    ("offline_target_ipu_version", "--offline-target-ipu-version", 2),
]

INACTIVE_FAMILY_CASES: list[Case] = [
    (
        {"stem": "small", "model": "efficientnet-cifar"},
        "--stem",
        "with --model efficientnet-cifar: only ResNet and ResNeXt have this option",
    ),
    (
        {"shortcut_type": "C", "model": "mobilenet"},
        "--shortcut-type",
        "with --model mobilenet: only ResNet and ResNeXt have this option",
    ),
    (
        {"norm_type": "group", "model": "squeezenet"},
        "--norm-type",
        "with --model squeezenet: the model has no normalization layers",
    ),
    (
        {"norm_eps": 0.1, "model": "squeezenet"},
        "--norm-eps",
        "with --model squeezenet: the model has no normalization layers",
    ),
    ({"stable_norm": True, "norm_type": "none"}, "--stable-norm", "with --norm-type none"),
    ({"enable_fast_groupnorm": True}, "--enable-fast-groupnorm", "with --norm-type batch"),
    ({"cardinality": 8}, "--cardinality", "with --model resnet14: only ResNeXt has this option"),
    (
        {"group_dim": 8},
        "--group-dim",
        "with --model resnet14: only ResNeXt and EfficientNet have this option",
    ),
    (
        {"expand_ratio": 4},
        "--expand-ratio",
        "with --model resnet14: only EfficientNet has this option",
    ),
    (
        {"block_survival_prob": 0.5},
        "--block-survival-prob",
        "with --model resnet14: only EfficientNet has this option",
    ),
    (
        {"squeeze_excite": True},
        "--squeeze-excite",
        "with --model resnet14: only EfficientNet has this option",
    ),
    (
        {"depth_divisor": 4},
        "--depth-divisor",
        "with --model resnet14: only EfficientNet has this option",
    ),
    ({"top_width": 640}, "--top-width", "with --model resnet14: only EfficientNet has this option"),
    ({"use_relu": True}, "--use-relu", "with --model resnet14: only EfficientNet has this option"),
    (
        {"width_coefficient": 1.5},
        "--width-coefficient",
        "with --model resnet14: only EfficientNet has this option",
    ),
    (
        {"depth_coefficient": 1.5},
        "--depth-coefficient",
        "with --model resnet14: only EfficientNet has this option",
    ),
    (
        {"proxy_norm": True},
        "--proxy-norm",
        "with --model resnet14: only EfficientNet has this option",
    ),
    ({"widenet": True}, "--widenet", "with --model resnet14: only ResNeXt has this option"),
    (
        {"widenet": True, "model": "resnext50"},
        "--widenet",
        "with --model resnext50: the model is already wide",
    ),
    (
        {"dropout_rate": 0.5},
        "--dropout-rate",
        "with --model resnet14: only EfficientNet and MobileNet and SqueezeNet have this option",
    ),
    (
        {"use_bypass": True},
        "--use-bypass",
        "with --model resnet14: only SqueezeNet has this option",
    ),
    (
        {"proxy_epsilon": 0.5, "model": "efficientnet-cifar"},
        "--proxy-epsilon",
        "without --proxy-norm",
    ),
    (
        {"proxy_recompute": True, "model": "efficientnet-cifar"},
        "--proxy-recompute",
        "without --proxy-norm",
    ),
]

NEEDS_FLOATS = "with --hostside-image-mixing: mixup needs normalized floats"
ON_HOST: Values = {"mixup_alpha": 0.2, "hostside_image_mixing": True, "validation_mode": "none"}
NOT_MIXED = "with --data synthetic: its only micro-batch is not mixed"

INACTIVE_MIXING_CASES: list[Case] = [
    ({"mixup_alpha": 0.2, "data": "synthetic"}, "--mixup-alpha", NOT_MIXED),
    ({"cutmix_lambda_high": 0.5, "data": "synthetic"}, "--cutmix-lambda-high", NOT_MIXED),
    (
        {"cutmix_lambda_low": 0.5, "cutmix_lambda_high": 0.6, "cutmix_version": 2},
        "--cutmix-lambda-high",
        "with --cutmix-version 2: only the lower bound is used",
    ),
    ({"cutmix_version": 1}, "--cutmix-version", "without --cutmix-lambda-high"),
    (
        {"cutmix_disable_prob": 0.5, "cutmix_lambda_low": 1.0, "cutmix_lambda_high": 1.0},
        "--cutmix-disable-prob",
        "without --cutmix-lambda-high",
    ),
    (
        {"hostside_image_mixing": True},
        "--hostside-image-mixing",
        "without --mixup-alpha or --cutmix-lambda-high",
    ),
    ({"eight_bit_io": True, **ON_HOST}, "--eight-bit-io", NEEDS_FLOATS),
    ({"normalization_location": "device", **ON_HOST}, "--normalization-location", NEEDS_FLOATS),
]

INACTIVE_LOSS_CASES: list[Case] = [
    (
        {"initial_loss_scaling": 16.0, "auto_loss_scaling": True, "precision": "16.32"},
        "--initial-loss-scaling",
        "with --auto-loss-scaling: the loss scale starts with --loss-scaling",
    ),
    (
        {"auto_loss_scaling": True},
        "--auto-loss-scaling",
        "with --precision 32.32: there are no 16-bit gradients",
    ),
    (
        {"on_nonfinite": "skip", "enable_fp_exceptions": True},
        "--on-nonfinite",
        "with --enable-fp-exceptions",
    ),
    ({"max_skipped": 3}, "--max-skipped", "with --on-nonfinite stop"),
]

_HALF: dict[str, Any] = {"precision": "16.16"}
_IN_32 = "with --precision 32.32"
_STORED_IN_32 = "weights and optimizer state are stored in 32 bits"

INACTIVE_PRECISION_CASES: list[Case] = [
    ({"full_precision_norm": True}, "--full-precision-norm", _IN_32),
    (
        {"full_precision_norm": True, "norm_type": "none", **_HALF},
        "--full-precision-norm",
        "with --norm-type none",
    ),
    ({"half_type": "bfloat16"}, "--half-type", _IN_32),
    ({"half_arithmetic": "emulated"}, "--half-arithmetic", _IN_32),
    ({"half_partial": True}, "--half-partial", _IN_32),
    ({"half_partial": True, **_HALF}, "--half-partial", "unless the device is CUDA; --half-ari"),
    (
        {"half_partial": True, "device": "cpu", "half_arithmetic": "native", **_HALF},
        "--half-partial",
        "with --device cpu; --half-arithmetic emulated rounds partial sums on any device",
    ),
    ({"saturate_on_overflow": True}, "--saturate-on-overflow", _IN_32),
    (
        {"enable_stochastic_rounding": True},
        "--enable-stochastic-rounding",
        f"with --precision 32.32: {_STORED_IN_32}",
    ),
    (
        {"enable_stochastic_rounding": True, "precision": "16.32"},
        "--enable-stochastic-rounding",
        f"with --precision 16.32: {_STORED_IN_32}",
    ),
    (
        {"enable_stochastic_rounding": True, "offload_fp32_weight_copy": True, **_HALF},
        "--enable-stochastic-rounding",
        f"with --precision 16.16 and --offload-fp32-weight-copy: {_STORED_IN_32}",
    ),
    (
        {"force_weight_to_fp16": ("fc",), **_HALF},
        "--force-weight-to-fp16",
        "with --precision 16.16: all weights have 16 bits",
    ),
    ({"force_weight_to_fp32": ("fc",)}, "--force-weight-to-fp32", _IN_32),
    (
        {"force_weight_to_fp32": ("fc",), "offload_fp32_weight_copy": True, **_HALF},
        "--force-weight-to-fp32",
        "with --offload-fp32-weight-copy: all weights have fp32 copies",
    ),
    (
        {"offload_fp32_weight_copy": True, "precision": "16.32"},
        "--offload-fp32-weight-copy",
        "with --precision 16.32",
    ),
]

# Every option has an effect.
ACTIVE_PRECISION_CASES: list[Values] = [
    {
        "full_precision_norm": True,
        "half_type": "bfloat16",
        "half_partial": True,
        "device": "cuda",
        **_HALF,
    },
    {"half_partial": True, "half_arithmetic": "emulated", **_HALF},
    {"half_arithmetic": "native", "saturate_on_overflow": True, "precision": "16.32"},
    {"enable_stochastic_rounding": True, **_HALF},
    {"enable_stochastic_rounding": True, "optimizer_state_dtype": "float16"},
    {"half_type": "bfloat16", "force_weight_to_fp16": ("fc",)},
    {"force_weight_to_fp32": ("fc",), **_HALF},
    {"force_weight_to_fp16": ("fc",), "offload_fp32_weight_copy": True, **_HALF},
    {"offload_optimizer": True, "momentum": 0.0, "precision": "16.32"},
    {"offload_optimizer": True, "momentum": 0.0, "offload_fp32_weight_copy": True, **_HALF},
]

NO_MOMENTUM = "with --momentum 0: there is no optimizer state"

INACTIVE_OPTIMIZER_CASES: list[Case] = [
    ({"momentum": 0.5, "optimizer": "adamw"}, "--momentum", "with --optimizer adamw"),
    (
        {"weight_decay_spares": "nothing", "weight_decay": 0.0},
        "--weight-decay-exclude",
        "with --weight-decay 0",
    ),
    (
        {"weight_decay_spares": "norms", "optimizer": "lars"},
        "--weight-decay-exclude",
        "with --optimizer lars without --lars-weight-decay: --lars-skip-list contains all",
    ),
    ({"rmsprop_decay": 0.5}, "--rmsprop-decay", "with --optimizer sgd"),
    (
        {"rmsprop_base_decay_exp": -14.0, "optimizer": "adamw"},
        "--rmsprop-base-decay-exp",
        "with --optimizer adamw",
    ),
    ({"optimizer_eps": 0.1, "optimizer": "lars"}, "--optimizer-eps", "with --optimizer lars"),
    ({"lars_epsilon": 0.1}, "--lars-epsilon", "with --optimizer sgd"),
    ({"lars_eeta": 0.1, "optimizer": "rmsprop"}, "--lars-eeta", "with --optimizer rmsprop"),
    ({"lars_weight_decay": 0.1}, "--lars-weight-decay", "with --optimizer sgd"),
    ({"lars_skip_list": ("fc",)}, "--lars-skip-list", "with --optimizer sgd"),
    (
        {"loss_velocity_scaling_ratio": 2.0},
        "--loss-velocity-scaling-ratio",
        "with --optimizer sgd",
    ),
    (
        {"loss_velocity_scaling_ratio": 2.0, "optimizer": "sgd_combined", "momentum": 0.0},
        "--loss-velocity-scaling-ratio",
        "with --momentum 0: there is no momentum buffer",
    ),
    *(
        (
            {"optimizer_state_dtype": "bfloat16", "momentum": 0.0, "optimizer": optimizer},
            "--optimizer-state-dtype",
            NO_MOMENTUM,
        )
        for optimizer in ("sgd", "sgd_combined", "lars")
    ),
    (
        {"offload_optimizer": True, "momentum": 0.0, "precision": "16.16"},
        "--offload-optimizer",
        NO_MOMENTUM,
    ),
    (
        {"offload_optimizer": True, "momentum": 0.0, "optimizer": "lars"},
        "--offload-optimizer",
        NO_MOMENTUM,
    ),
]

# Every option has an effect.
ACTIVE_OPTIMIZER_CASES: list[Values] = [
    {"optimizer": "lars", "lars_epsilon": 0.1, "lars_eeta": 0.1, "lars_skip_list": ("fc",)},
    {"optimizer": "lars", "lars_weight_decay": 0.1, "weight_decay_spares": "norms"},
    {"optimizer": "lars", "lars_skip_list": ("bias",), "weight_decay_spares": "norms"},
    {"optimizer": "rmsprop", "rmsprop_decay": 0.5, "optimizer_eps": 0.1, "momentum": 0.5},
    {"optimizer": "rmsprop_tf", "rmsprop_base_decay_exp": -14.0, "optimizer_eps": 0.1},
    {"optimizer": "adamw", "optimizer_eps": 0.1, "weight_decay_spares": "nothing"},
    {"optimizer": "sgd_combined", "loss_velocity_scaling_ratio": 2.0, "momentum": 0.5},
    {"optimizer": "rmsprop", "momentum": 0.0, "offload_optimizer": True},
    {"optimizer": "rmsprop_tf", "momentum": 0.0, "optimizer_state_dtype": "float16"},
    {"optimizer": "adamw", "replicas": 2, "enable_optimizer_rts": True},
    {"momentum": 0.0, "precision": "16.32", "offload_optimizer": True},
    {
        "momentum": 0.0,
        "precision": "16.16",
        "force_weight_to_fp32": ("fc",),
        "replicas": 2,
        "enable_optimizer_rts": True,
    },
]

ONE_MICRO_BATCH = "with one micro-batch per update"
TWO_PHASES: Values = {
    "half_res_training": True,
    "fine_tune_epoch": 1,
    "fine_tune_first_trainable_layer": "fc",
    "weight_avg_strategy": "mean",
}

INACTIVE_REDUCTION_CASES: list[Case] = [
    ({"gradient_mean_reduce_re": (".*",)}, "--gradient-mean-reduce-re", ONE_MICRO_BATCH),
    ({"gradient_reduction": "running-mean"}, "--gradient-reduction", ONE_MICRO_BATCH),
    ({"gradient_reduction": "sum", **TWO_PHASES}, "--gradient-reduction", ONE_MICRO_BATCH),
]

ACTIVE_CASES: list[Values] = [
    {"gradient_reduction": "sum", "gradient_accumulation": 2},
    {"gradient_reduction": "running-mean", "gradient_mean_reduce_re": ("fc.*",), "replicas": 2},
    {"accumulator_dtype": "float16", "accumulator_dtype_rules": ("fc.*=float32",)},
    {"gradient_reduction": "sum", **TWO_PHASES, "fine_tune_gradient_accumulation": 2},
]

INACTIVE_CASES: list[Case] = [
    *INACTIVE_FAMILY_CASES,
    (
        {"resnet_version": "v1"},
        "--resnet-version",
        "with --model resnet14: the model has no bottleneck blocks",
    ),
    ({"norm_num_groups": 8}, "--norm-num-groups", "with --norm-type batch"),
    ({"norm_num_groups": 8, "norm_type": "none"}, "--norm-num-groups", "with --norm-type none"),
    ({"norm_eps": 1e-3, "norm_type": "none"}, "--norm-eps", "with --norm-type none"),
    (
        {"batchnorm_momentum": 0.2, "norm_type": "group"},
        "--batchnorm-momentum",
        "with --norm-type group",
    ),
    (
        {"zero_init_last_norm": True, "model": "resnet34"},
        "--zero-init-last-norm",
        "with --model resnet34: the model has no bottleneck blocks",
    ),
    (
        {"zero_init_last_norm": True, "model": "resnet50", "norm_type": "none"},
        "--zero-init-last-norm",
        "with --norm-type none",
    ),
    (
        {"zero_init_last_norm": True, "model": "resnet50", "shortcut_type": "C"},
        "--zero-init-last-norm",
        "with --shortcut-type C",
    ),
    ({"data_dir": "DATA"}, "--data-dir", "with --data shapes: there are no files to read"),
    (
        {"validation_share": 0.2},
        "--validation-share",
        "with --data shapes: only imagenet has image files",
    ),
    (
        {"augment": True, "data": "generated"},
        "--augment",
        "with --data generated: the dataset has no random crops and flips",
    ),
    (
        {"normalization_location": "device", **NO_VALIDATION},
        "--normalization-location",
        "with --data synthetic and --validation-mode none",
    ),
    (
        {"dataloader_worker": 2, **NO_VALIDATION},
        "--num-workers",
        "with --data synthetic and --validation-mode none",
    ),
    (
        {"prefetch_depth": 9, **NO_VALIDATION},
        "--prefetch-depth",
        "with --data synthetic and --validation-mode none",
    ),
    (
        {"prefetch_depth": 9, "dataloader_worker": 0},
        "--prefetch-depth",
        "with --num-workers 0",
    ),
    *[
        (
            {name: value},
            "--" + name.replace("_", "-"),
            "with --data shapes: only imagenet has image files",
        )
        for name, value in [
            ("crop_rule", "tensorflow"),
            ("use_bbox_info", True),
            ("dataloader_kind", "processes"),
            ("webdataset_memory_cache_ratio", 0.5),
            ("bad_records", "skip"),
            ("max_bad_records", 7),
        ]
    ],
    (
        {"crop_rule": "tensorflow", "data": "imagenet", "augment": False},
        "--crop-rule",
        "with --no-augment",
    ),
    (
        {"use_bbox_info": True, "data": "imagenet", "augment": False},
        "--use-bbox-info",
        "with --no-augment",
    ),
    (
        {"normalize_std": True, "normalization_location": "none"},
        "--normalize-std",
        "with --normalization-location none",
    ),
    (
        {"dataloader_kind": "processes", "data": "imagenet", "dataloader_worker": 0},
        "--dataloader-kind",
        "with --num-workers 0",
    ),
    (
        {"dataloader_rebatch_size": 4, "dataloader_worker": 0},
        "--dataloader-rebatch-size",
        "with --num-workers 0",
    ),
    (
        {"dataloader_rebatch_size": 4, **NO_VALIDATION},
        "--dataloader-rebatch-size",
        "with --data synthetic and --validation-mode none",
    ),
    (
        {"dataset_cache": True, "data": "generated"},
        "--dataset-cache",
        "with --data generated: the dataset is always in memory",
    ),
    (
        {"dataset_cache_mb": 9, "data": "cifar10"},
        "--dataset-cache-mb",
        "with --data cifar10: the dataset is always in memory",
    ),
    (
        {"dataset_cache_mb": 9, "dataset_cache": False},
        "--dataset-cache-mb",
        "with --no-dataset-cache",
    ),
    (
        {"dataset_cache_mb": 9, "data": "imagenet", "webdataset_memory_cache_ratio": 0.5},
        "--dataset-cache-mb",
        "with --webdataset-memory-cache-ratio",
    ),
    (
        {"webdataset_memory_cache_ratio": 0.5, "data": "imagenet", "dataset_cache": False},
        "--webdataset-memory-cache-ratio",
        "with --no-dataset-cache",
    ),
    *[
        (
            {name: value, "data": "imagenet", "dataloader_kind": "processes"},
            "--" + name.replace("_", "-"),
            "with --dataloader-kind processes: the page cache of the system keeps the files",
        )
        for name, value in [
            ("dataset_cache", True),
            ("dataset_cache_mb", 9),
            ("webdataset_memory_cache_ratio", 0.5),
        ]
    ],
    (
        {"max_bad_records": 7, "data": "imagenet"},
        "--max-bad-records",
        "with --bad-records error",
    ),
    (
        {"prefetch_depth": 3, "dataloader_worker": 4},
        "--prefetch-depth",
        "below --num-workers 4",
    ),
    *INACTIVE_MIXING_CASES,
    *INACTIVE_REDUCTION_CASES,
    ({"lr_decay": 0.1}, "--lr-decay", "with --lr-schedule cosine"),
    (
        {"lr_decay": 0.1, "lr_schedule": "step"},
        "--lr-decay",
        "with --lr-schedule step without --lr-epoch-decay",
    ),
    (
        {"lr_decay": 0.1, "lr_multipliers": (1.0, 0.2, 0.1), **STEP},
        "--lr-decay",
        "with --lr-multipliers",
    ),
    ({"lr_share_decay": (0.5,)}, "--lr-share-decay", "with --lr-schedule cosine"),
    ({"lr_multipliers": (1.0,)}, "--lr-multipliers", "with --lr-schedule cosine"),
    (
        {"lr_drops": 3, "lr_schedule": "step"},
        "--lr-drops",
        "with --lr-schedule step without --lr-epoch-decay",
    ),
    ({"abs_end_learning_rate": 0.1}, "--abs-end-learning-rate", "with --lr-schedule cosine"),
    (
        {"eight_bit_io": True, "normalization_location": "host"},
        "--normalization-location",
        "with --eight-bit-io",
    ),
    (
        {"eight_bit_io": True, **NO_VALIDATION},
        "--eight-bit-io",
        "with --data synthetic and --validation-mode none",
    ),
    ({"lr_epoch_decay": (1.0,)}, "--lr-epoch-decay", "with --lr-schedule cosine"),
    (
        {"lr_epoch_decay": (1.0,), "lr_schedule": "exponential"},
        "--lr-epoch-decay",
        "with --lr-schedule exponential",
    ),
    (
        {"lr_scheduler_freq": 2.0, "lr_schedule": "step"},
        "--lr-scheduler-freq",
        "with --lr-schedule step without --lr-epoch-decay",
    ),
    (
        {"lr_scheduler_freq": 0.5, **STEP},
        "--lr-scheduler-freq",
        "with --lr-schedule step: every drop falls on a learning rate change",
    ),
    (
        {"poly_lr_decay_power": 3.0, "lr_schedule": "step", "lr_epoch_decay": (1.0,)},
        "--poly-lr-decay-power",
        "with --lr-schedule step",
    ),
    ({"poly_lr_end_ratio": 0.0}, "--poly-lr-end-ratio", "with --lr-schedule cosine"),
    *INACTIVE_OPTIMIZER_CASES,
    *INACTIVE_PRECISION_CASES,
    (
        {"label_smoothing_over": "others"},
        "--label-smoothing-over",
        "without --label-smoothing",
    ),
    *(
        ({name: 3}, "--" + name.replace("_", "-"), "without --half-res-training")
        for name in (
            "fine_tune_epoch",
            "fine_tune_lr",
            "fine_tune_micro_batch_size",
            "fine_tune_gradient_accumulation",
        )
    ),
    (
        {**SINGLE_DEVICE, "shards": 1, "enable_recompute": False},
        "--pipeline-splits",
        "on one device with --no-enable-recompute",
    ),
    (
        {**SINGLE_DEVICE, "device_mapping": (1, 1), "enable_recompute": False},
        "--pipeline-splits",
        "on one device with --no-enable-recompute",
    ),
    ({"pipeline_schedule": "grouped"}, "--pipeline-schedule", "with one stage"),
    ({"pipeline_schedule": "sequential", "shards": 1}, "--pipeline-schedule", "with one stage"),
    ({"device_mapping": (3,), "device": "cpu"}, "--device-mapping", "with --device cpu"),
    ({"device_mapping": (1, 0), "device": "cpu", "shards": 2}, "--device-mapping", "with --device"),
    (
        {**SINGLE_DEVICE, "shards": 1, "device_mapping": (1, 1), "device": "cpu"},
        "--device-mapping",
        "with --device cpu",
    ),
    (
        {**SINGLE_DEVICE, "device_mapping": (1, 0), "device": "cpu"},
        "--device-mapping",
        "with --device",
    ),
    (
        {
            **SINGLE_DEVICE,
            "pipeline_schedule": "grouped",
            "device_mapping": (1, 1),
            "device": "cpu",
        },
        "--device-mapping",
        "with --device cpu",
    ),
    (
        {"offload_optimizer": True, "momentum": 0.0},
        "--offload-optimizer",
        "with --momentum 0: there is no optimizer state",
    ),
    ({"enable_optimizer_rts": True}, "--enable-optimizer-rts", "with one replica"),
    (
        {"enable_optimizer_rts": True, "replicas": 2, "momentum": 0.0},
        "--enable-optimizer-rts",
        "with --momentum 0: there is no optimizer state",
    ),
    ({"reduction": "fast"}, "--reduction", "with one replica"),
    ({"overlap_reduction": True}, "--overlap-reduction", "with one replica"),
    (
        {"max_cross_replica_buffer_size": 4096},
        "--max-cross-replica-buffer-size",
        "with one replica",
    ),
    ({"select_devices": (1,), "device": "cpu"}, "--select-devices", "with --device cpu"),
    ({"select_devices": (1,), "device": "mps"}, "--select-devices", "with --device mps"),
    (
        {"ckpt_epochs_offset": 3, "ckpts_per_epoch": 0},
        "--ckpt-epochs-offset",
        "with --ckpts-per-epoch 0",
    ),
    (
        {"keep_last": 3, "ckpts_per_epoch": 0},
        "--keep-last",
        "with --ckpts-per-epoch 0, unless the run is stopped",
    ),
    (
        {"on_save_error": "continue", "ckpts_per_epoch": 0},
        "--on-save-error",
        "with --ckpts-per-epoch 0: the checkpoint of a stopped run must be written",
    ),
    (
        {"weight_avg_strategy": "exponential", "ckpts_per_epoch": 0},
        "--weight-avg-strategy",
        "with --ckpts-per-epoch 0: there are no checkpoints to average",
    ),
    ({"weight_avg_n": 5}, "--weight-avg-n", f"{NO_AVERAGE}: only `convoy average` uses it"),
    (
        {"weight_avg_n": 5, "weight_avg_strategy": "mean", "keep_last": 4},
        "--weight-avg-n",
        "above --keep-last 4",
    ),
    (
        {"weight_avg_exp_decay": 0.9},
        "--weight-avg-exp-decay",
        f"{NO_AVERAGE}: only `convoy average` uses it",
    ),
    (
        {"weight_avg_exp_decay": 0.9, "weight_avg_strategy": "mean"},
        "--weight-avg-exp-decay",
        "with --weight-avg-strategy mean",
    ),
    (
        {"norm_statistics": "keep"},
        "--norm-statistics",
        f"{NO_AVERAGE}: only `convoy average` uses it",
    ),
    (
        {"ema_decay": 0.9, "ckpts_per_epoch": 0, "validation_mode": "none"},
        "--ema-decay",
        "with --ckpts-per-epoch 0 and --validation-mode none: it is neither saved nor validated",
    ),
    ({"validation_frequency": 2}, "--validation-frequency", "with --validation-mode after"),
    (
        {"validation_frequency": 2, "validation_mode": "none"},
        "--validation-frequency",
        "with --validation-mode none",
    ),
    (
        {"valid_batch_size": 9, "validation_mode": "none"},
        "--valid-batch-size",
        "with --validation-mode none: only `convoy validate` uses it",
    ),
    ({"random_weights": True}, "--random-weights", "on training: only `convoy validate` uses it"),
    ({"repeat": 3}, "--repeat", "on training: only `convoy validate` uses it"),
    ({"latency": True}, "--latency", "on training: only `convoy validate` uses it"),
    ({"backend": "compiled"}, "--backend", "on training: only `convoy validate` uses it"),
    ({"model_cache_path": "here"}, "--model-cache-path", "without --compile"),
    ({"force_recompile": True}, "--force-recompile", "without --compile"),
    ({"tmp_execs": True}, "--tmp-execs", "without --compile"),
    ({"tmp_execs": True, "compile": True}, "--tmp-execs", "without --model-cache-path"),
    ({"log_dir": "here", "checkpoint_output_path": "there"}, "--log-dir", "with --output"),
    ({"name_suffix": "b", "checkpoint_output_path": "a"}, "--name-suffix", "with --output"),
    (
        {"instances": 2, "replicas": 4},
        "--instances",
        "yet: every replica loads its own samples",
    ),
    ({"gcl_method": "broadcast"}, "--gcl-method", "unless the device is CUDA; on CUDA it"),
    ({"exchange_memory_target": "cycles"}, "--exchange-memory-target", "unless the device is"),
    ({"available_memory_proportion": (0.5,)}, "--available-memory-proportion", "unless the"),
    *INACTIVE_LOSS_CASES,
    *(({name: value}, flag, "without an IPU: ") for name, flag, value in IPU_OPTIONS),
]
