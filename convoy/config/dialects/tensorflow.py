"""The TensorFlow program (`train.py`, `restore.py`, `validation.py`, …): its spellings.

Names are those of all its releases. A part (a name that is no option) is put together with others
in `tensorflow_joins.py`; what is left unsaid stands in `tensorflow_defaults.py`.
"""

from dataclasses import replace
from functools import cache

from convoy.config.dialects.dialect import Dialect, Flag
from convoy.config.dialects.speech import TARGET
from convoy.config.dialects.tensorflow_defaults import tensorflow_defaults
from convoy.config.dialects.tensorflow_joins import JOINS
from convoy.config.dialects.tensorflow_machine import JOINS as MACHINE_JOINS
from convoy.config.dialects.tensorflow_machine import shards_become_replicas
from convoy.config.dialects.tensorflow_says import SAYS
from convoy.config.dialects.tensorflow_words import (
    decay_of_momentum,
    device_numbers,
    fractions,
    lower,
    optimizer_of,
    precise,
    profile_level,
    rounding,
    schedule_of_rates,
)
from convoy.config.values import Kind

NAME = "tensorflow"

_EQUAL = "all replicas hold the same bits, and that is checked"
_ONE_WRITES = "one process writes, for all"

FLAGS = (
    # the network
    Flag("--model", "family", read=lower),
    Flag("--model-size", "size"),
    Flag("--convolution-groups", "cardinality"),
    Flag("--group-dim", "group_dim"),
    Flag("--expand-ratio", "expand_ratio"),
    Flag("--widenet", "widenet", means=True),
    Flag("--dropout-rate", "dropout_rate"),
    Flag("--block-survival-prob", "block_survival_prob"),
    Flag("--no-se", "squeeze_excite", means=False),
    Flag("--depth-divisor", "depth_divisor"),
    Flag("--top-width", "top_width"),
    Flag("--use-relu", "use_relu", means=True),
    Flag("--width-coefficient", "width_coefficient"),
    Flag("--depth-coefficient", "depth_coefficient"),
    Flag("--use-bypass", "use_bypass", means=True),
    # normalization
    Flag("--batch-norm", "batch_norm", means=True),
    Flag("--group-norm", "group_norm", means=True),
    Flag("--groups", "norm_num_groups"),
    Flag("--norm-epsilon", "norm_eps"),
    Flag("--BN-decay", "batchnorm_momentum", read=decay_of_momentum),
    Flag("--BN-span", "bn_span"),
    Flag("--stable-norm", "stable_norm", means=True),
    Flag("--force-unstable-norm", "stable_norm", means=False),
    Flag("--proxy-norm", "proxy_norm", means=True),
    Flag("--proxy-epsilon", "proxy_epsilon"),
    Flag("--no-proxy-recompute", "proxy_recompute", means=False, key="proxy_recompute"),
    # data
    Flag("--dataset", "dataset", read=lower),
    Flag("--data-dir", "data_dir"),
    Flag("--generated-data", "made", means="generated"),
    Flag("--synthetic-data", "made", means="synthetic"),
    Flag("--image-size", "image_size"),
    Flag("--standard-imagenet", means=True, why="samples always come in a plain seeded order"),
    Flag("--no-dataset-cache", "dataset_cache", means=False),
    Flag("--pipeline-num-parallel", "dataloader_worker"),
    Flag("--dataset-percentage-to-use", "dataset_percentage_to_use"),
    Flag("--eight-bit-io", "eight_bit_io", means=True),
    Flag("--hostside-norm", "normalization_location", means="host"),
    Flag("--no-hostside-norm", "normalization_location", means="device"),
    Flag("--normalise-input", "normalize_std", means=True),
    Flag("--fused-preprocessing", "fused", means=True),
    Flag("--train-with-valid-preprocessing", "augment", means=False),
    Flag("--prefetch-depth", "prefetch_depth"),
    Flag("--seed", "seed"),
    Flag("--identical-replica-seeding", means=True, why="chance never depends on the replica"),
    Flag("--mixup-alpha", "mixup_alpha"),
    Flag("--cutmix-lambda", "cutmix_lambda", read=Kind(float).read),
    Flag("--cutmix-version", "cutmix_version"),
    Flag("--hostside-image-mixing", "hostside_image_mixing", means=True),
    # batches and length
    Flag("--batch-size", "batch_size", read=Kind(int).read),
    Flag("--micro-batch-size", "micro_batch_size"),
    Flag("--gradient-accumulation-count", "gradient_accumulation"),
    Flag("--gradients-to-accumulate", "gradients_to_accumulate", read=Kind(int).read),
    Flag("--pipeline-depth", "pipeline_depth", read=Kind(int).read),
    Flag("--replicas", "replicas"),
    Flag("--epochs", "epoch"),
    Flag("--epoch", "epoch"),  # a unique prefix once, and used as one
    Flag("--iterations", "updates"),
    Flag("--batches-per-step", "device_iterations"),
    Flag("--device-iterations", "device_iterations"),
    # learning rate
    Flag("--base-learning-rate", "exponent", read=Kind(float).read),
    Flag("--base-learning-rate-exponent", "exponent", read=Kind(float).read),
    Flag("--abs-learning-rate", "lr"),
    Flag("--lr-schedule", "lr_schedule", read=schedule_of_rates),
    Flag("--learning-rate-schedule", "lr_share_decay", read=fractions),
    Flag("--learning-rate-decay", "step_decay", read=Kind(float).read),
    Flag("--lr-decay-rate", "exponential_decay", read=Kind(float).read),
    Flag("--lr-drops", "lr_drops"),
    Flag("--warmup-epochs", "warmup_epoch"),
    Flag("--poly-lr-decay-power", "poly_lr_decay_power"),
    Flag("--poly-lr-end-ratio", "poly_lr_end_ratio"),
    Flag("--abs-end-learning-rate", "abs_end_learning_rate"),
    Flag("--poly-lr-end-lr", "abs_end_learning_rate"),
    Flag("--poly-lr-initial-lr", "lr"),
    Flag("--poly-lr-decay-steps", "decay_steps", read=Kind(int).read),
    # optimizer, loss, arithmetic
    Flag("--optimiser", "optimiser", read=optimizer_of),
    Flag("--momentum", "optimiser_momentum", read=Kind(float).read),
    Flag("--weight-decay", "weight_decay"),
    Flag("--rmsprop-decay", "rmsprop_decay"),
    Flag("--rmsprop-base-decay-exp", "rmsprop_base_decay_exp"),
    Flag("--rmsprop-epsilon", "optimizer_eps"),
    Flag("--lars-epsilon", "lars_epsilon"),
    Flag("--lars-eeta", "lars_eeta"),
    Flag("--lars-weight-decay", "lars_weight_decay"),
    Flag("--lars-skip-list", "lars_skip_list"),
    Flag("--variable-filter", "variable_filter"),
    Flag("--gradient-mean-reduce-re", "gradient_mean_reduce_re"),
    Flag("--label-smoothing", "smoothing", read=Kind(float).read),
    Flag("--loss-scaling", "loss_scaling"),
    Flag("--precision", "precision", read=precise),
    Flag("--enable-half-partials", "half_partial", means=True),
    Flag("--no-stochastic-rounding", "enable_stochastic_rounding", means=False),
    Flag("--stochastic-rounding", "enable_stochastic_rounding", read=rounding),
    Flag("--fp-exceptions", "enable_fp_exceptions", means=True),
    Flag("--saturate-on-overflow", "saturate_on_overflow", means=True),
    Flag("--force-weight-to-fp16", "force_weight_to_fp16"),
    Flag("--force-weight-to-fp32", "force_weight_to_fp32"),
    Flag("--offload-fp32-weight-copy", "offload_fp32_weight_copy", means=True),
    # pipeline and memory
    Flag("--shards", "shards"),
    Flag("--pipeline", "pipeline", means=True),
    Flag("--pipeline-splits", "pipeline_splits"),
    Flag("--pipeline-schedule", "pipeline_schedule", read=lower),
    Flag("--sharding-include-filter", "sharding_include_filter"),
    Flag("--sharding-exclude-filter", "sharding_exclude_filter"),
    Flag("--enable-recomputation", "enable_recompute", means=True),
    Flag("--xla-recompute", "enable_recompute", means=True),
    Flag("--enable-recompute", "enable_recompute", means=True),
    Flag("--disable-variable-offloading", "offload_optimizer", means=False),
    Flag("--min-remote-tensor-size", "min_remote_tensor_size"),
    Flag("--rts", "enable_optimizer_rts", means=True),
    Flag(
        "--available-memory-proportion",
        "proportions",
        read=Kind(float, many=True).read,
        several=True,
    ),
    Flag("--max-cross-replica-buffer-size", "max_cross_replica_buffer_size"),
    Flag("--max-reduce-many-buffer-size", "max_reduce_many_buffer_size"),
    # processes
    Flag("--distributed", "distributed", means=True),
    Flag("--syncs-per-epoch", read=Kind(int).read, why=_EQUAL),
    Flag("--epochs-per-sync", read=Kind(float).read, why=_EQUAL),
    Flag("--ckpt-all-instances", why=_ONE_WRITES),
    Flag("--log-all-instances", why=_ONE_WRITES),
    # checkpoints and averages
    Flag("--ckpts-per-epoch", "ckpts_per_epoch"),
    Flag("--epochs-per-ckpt", "epochs_per_ckpt"),
    Flag("--ckpt-epochs-offset", "ckpt_epochs_offset"),
    Flag("--max-ckpts-to-keep", "keep_last"),
    Flag("--restore-path", TARGET),
    Flag("--init-path", "init_path"),
    Flag("--wandb-id", "wandb_id"),
    Flag("--weight-avg-N", "mean_of", read=Kind(int, many=True).read, several=True),
    Flag("--weight-avg-exp", "average_decay", read=Kind(float, many=True).read, several=True),
    Flag("--filename", why="an average lies beside the checkpoints it was made of"),
    Flag("-N", "weight_avg_n"),
    Flag("--mode", "weight_avg_strategy"),
    Flag("--decay", "weight_avg_exp_decay"),
    Flag("--discard-last", "discard_last", read=Kind(int).read),
    # validation and inference
    Flag("--no-validation", "validates", means=False, key="validation"),
    Flag("--valid-batch-size", "valid_batch_size"),
    Flag("--repeat", "repeat"),
    Flag("--inference", why="the sums of a validation are taken once, at its end"),
    Flag("--total-batch-size", why="a checkpoint knows its own epoch"),
    Flag("--latency", "latency", means=True),
    Flag("--num-inference-thread", "num_inference_thread"),
    Flag("--force-recompile", "force_recompile", means=True),
    Flag("--tmp-execs", "tmp_execs", means=True),
    # logs
    Flag("--log-dir", "log_dir"),
    Flag("--logs-path", "checkpoint_output_path"),
    Flag("--name-suffix", "name_suffix"),
    Flag("--logs-per-epoch", "logs_per_epoch"),
    Flag("--log-freq", "log_freq"),
    Flag("--no-logs", "logs", means=False),
    Flag("--mlperf-logging", "mlperf_logging", means=True),
    Flag("--wandb", "wandb", means=True),
    Flag("--wandb-project", "wandb_project"),
    Flag("--analyse-nans", "analyze_nans", means=True),
    Flag("--gc-profile", "profile_level", read=profile_level, bare=True),
    Flag("--profile", "profile", means=True),
    Flag("--profile-compilation", "profile_compilation", means=True),
    Flag("--dataset-benchmark", "dataset_benchmark", means=True),
    # device and compiler
    Flag("--select-ipu", "select_devices", read=device_numbers),
    Flag("--select-ipus", "select_devices", read=device_numbers),
    Flag("--on-demand", means=True, why="a device is taken when it is first needed"),
    Flag("--compile-only", "compile_only", means=True),
    Flag("--executable-cache-path", "model_cache_path"),
    Flag("--internal-exchange-optimisation-target", "exchange_memory_target", read=lower),
    Flag("--num-io-tiles", "num_io_tiles"),
    Flag("--enable-conv-dithering", "enable_conv_dithering", means=True),
    Flag("--gather-conv-output", "gather_conv_output", means=True),
    Flag("--only-use-slic-vmac-16", "only_use_slic_vmac_16", means=True),
    Flag("--scheduling-algorithm", "scheduling_algorithm"),
    Flag("--gcl-method", "gcl_method"),
    Flag("--gcl-max-broadcast-size", "gcl_max_broadcast_size"),
    Flag("--poplar-sync-configuration", "poplar_sync_configuration"),
)


@cache
def tensorflow() -> Dialect:
    """Training."""
    joins = (*JOINS, *MACHINE_JOINS)
    return Dialect(NAME, FLAGS, defaults=tensorflow_defaults, joins=joins, says=SAYS)


@cache
def tensorflow_validation() -> Dialect:
    """Validation and inference: the same words, without a pipeline."""
    return replace(tensorflow(), joins=(shards_become_replicas, *tensorflow().joins))
