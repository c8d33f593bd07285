"""The TensorFlow program (`train.py`, `restore.py`, `validation.py`, …): its flags and the
format of their values.

`tensorflow_combiners` has the options that several flags set together, `tensorflow_defaults` the
defaults of the program.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache

from convoy.config.flags import TARGET, Dialect, Flag, canonical_flags, choice_parser, lower_case
from convoy.config.option import OptionTypeError, ValueType
from convoy.dialects.tensorflow_combiners import COMBINERS, shards_become_replicas
from convoy.dialects.tensorflow_defaults import tensorflow_defaults

NAME = "tensorflow"
SCHEDULES = {
    "stepped": "step",
    "cosine": "cosine",
    "exponential": "exponential",
    "polynomial_decay_lr": "polynomial",
}
PROFILES = ("NO_PROFILE", "DEVICE_PROFILE", "IPU_PROFILE", "TILE_PROFILE")
INT, INTS = ValueType(int).parse, ValueType(int, is_list=True).parse
FLOAT, FLOATS = ValueType(float).parse, ValueType(float, is_list=True).parse
DEFAULT_BN_DECAY = Fraction("0.97")  # of batch statistics

_parse_optimizer = choice_parser(
    ("sgd", "momentum", "rmsprop", "lars"), str.lower, "SGD, momentum, RMSprop or LARS"
)
# The ON modes differ in how replicas stay in sync; here they always do.
_parse_rounding_mode = choice_parser(
    {"ON": True, "ON_prng_stable": True, "RI_prng_stable": True, "OFF": False}
)


def _first_word(words: list[str]) -> str:
    """Return `16.16` as written, which YAML may have parsed as a number."""
    return words[0]


def _momentum_from_decay(words: list[str]) -> float:
    """Convert a decay of 0.97 to PyTorch's momentum of 0.03; 0 stands for the default 0.97."""
    decay = ValueType(float).parse(words)
    if not 0 <= decay < 1:
        raise OptionTypeError(f"must be at least 0 and below 1, got {words[0]}")
    return float(1 - (Fraction(str(decay)) or DEFAULT_BN_DECAY))


def _parse_device_ids(words: list[str]) -> tuple[int, ...]:
    """Parse device numbers; AUTO means any device."""
    if [word.lower() for word in words] == ["auto"]:
        return ()
    numbers: tuple[int, ...] = ValueType(int, is_list=True).parse(words)
    return numbers


HELP_TEXTS: Mapping[str, str] = {
    "--model": "`--model`, with `--model-size`",
    "--model-size": "`--model`, with the family",
    "--batch-norm": "`--norm-type batch`",
    "--group-norm": "`--norm-type group`; with both, EfficientNet uses batch and others group",
    "--BN-decay": "`--batchnorm-momentum`: 1 − decay, so 0.97 is 0.03; 0 means 0.97",
    "--force-unstable-norm": "`--no-stable-norm`",
    "--dataset": "`--data`; default: guessed from the name of the data folder, or imagenet",
    "--generated-data": "`--data generated` with the number of samples and classes of the dataset",
    "--synthetic-data": "`--data synthetic` with the number of samples and classes of the dataset",
    "--hostside-norm": "`--normalization-location host`",
    "--no-hostside-norm": "`--normalization-location device`",
    "--fused-preprocessing": "`--normalization-location device --input-image-padding`",
    "--cutmix-lambda": "`--cutmix-lambda-low` and `--cutmix-lambda-high`; 1 is off",
    "--cutmix-version": "`--cutmix-version`; default: 1",
    "--batch-size": "`--micro-batch-size`",
    "--gradients-to-accumulate": "`--gradient-accumulation`",
    "--pipeline-depth": "`--gradient-accumulation`",
    "--iterations": "`--updates`; exactly this number, not rounded up to full steps",
    "--base-learning-rate": (
        "`--base-learning-rate-exponent`: the rate is 2^N × the samples per update; 0 "
        "selects the default"
    ),
    "--base-learning-rate-exponent": "`--base-learning-rate-exponent`; 0 selects the default",
    "--lr-schedule": "`--lr-schedule`: stepped is step, polynomial_decay_lr is polynomial",
    "--learning-rate-schedule": "`--lr-share-decay`",
    "--learning-rate-decay": "`--lr-decay`, if the schedule is stepped",
    "--lr-decay-rate": "`--lr-decay`, if the schedule is exponential",
    "--lr-drops": "`--lr-drops`, if the schedule is exponential",
    "--poly-lr-decay-steps": "no effect: the polynomial schedule ends with the run",
    "--optimiser": (
        "`--optimizer` and `--momentum`: SGD has no momentum, momentum is sgd_combined, RMSprop "
        "is rmsprop_tf"
    ),
    "--momentum": "`--momentum`, unless the optimizer is SGD",
    "--label-smoothing": "`--label-smoothing` with `--label-smoothing-over others`",
    "--stochastic-rounding": "`--enable-stochastic-rounding`, unless OFF; replicas stay in sync",
    "--pipeline": "`--shards`; if that is 1, `--pipeline-schedule sequential`",
    "--available-memory-proportion": "`--available-memory-proportion`; the first of two per stage",
    "--distributed": "no counterpart: TF_CONFIG sets the instances",
    "--restore-path": "the run or checkpoint that `convoy resume`, `validate` or `average` takes",
    "--weight-avg-N": (
        "`--weight-avg-strategy mean --weight-avg-n`: the last N epochs are N × checkpoints "
        "per epoch + 1"
    ),
    "--weight-avg-exp": "`--weight-avg-strategy exponential --weight-avg-exp-decay`",
    "--discard-last": "rejected above 0",
    "--no-validation": "`--validation-mode none`",
    "--gc-profile": "`--profile`, unless NO_PROFILE",
    "--dataset-benchmark": "`convoy data bench`: measures the data pipeline, without training",
    "--select-ipu": "`--select-devices`; AUTO selects any device",
    "--select-ipus": "`--select-devices`; AUTO selects any device",
}

_SEED_IGNORES_REPLICA = "random numbers never depend on the replica"
_REPLICAS_IN_SYNC = "replicas always have identical weights, which convoy checks"
_RANK_0_WRITES = "rank 0 writes for all processes"

# If several flags set one option, messages suggest the first.
FLAGS = (
    # the network
    Flag("--model", "family", parser=lower_case),
    Flag("--model-size", "size"),
    *canonical_flags(
        "--group-dim --expand-ratio --widenet --dropout-rate --block-survival-prob --depth-divisor "
        "--top-width --use-relu --width-coefficient --depth-coefficient --use-bypass"
    ),
    Flag("--convolution-groups", "cardinality"),
    Flag("--no-se", "squeeze_excite", const=False),
    # normalization
    *canonical_flags("--BN-span --stable-norm --proxy-norm --proxy-epsilon"),
    Flag("--batch-norm", "batch_norm", const=True),
    Flag("--group-norm", "group_norm", const=True),
    Flag("--groups", "norm_num_groups"),
    Flag("--norm-epsilon", "norm_eps"),
    Flag("--BN-decay", "batchnorm_momentum", parser=_momentum_from_decay),
    Flag("--force-unstable-norm", "stable_norm", const=False),
    Flag("--no-proxy-recompute", "proxy_recompute", const=False, yaml_key="proxy_recompute"),
    # data
    *canonical_flags(
        "--data-dir --image-size --no-dataset-cache --pipeline-num-parallel "
        "--dataset-percentage-to-use --eight-bit-io --prefetch-depth --seed --mixup-alpha "
        "--cutmix-version --hostside-image-mixing"
    ),
    Flag("--dataset", "dataset", parser=lower_case),
    Flag("--generated-data", "generated", const="generated"),
    Flag("--synthetic-data", "generated", const="synthetic"),
    Flag("--standard-imagenet", const=True, dropped="samples are always shuffled with the seed"),
    Flag("--hostside-norm", "normalization_location", const="host"),
    Flag("--no-hostside-norm", "normalization_location", const="device"),
    Flag("--normalise-input", "normalize_std", const=True),
    Flag("--fused-preprocessing", "fused", const=True),
    Flag("--train-with-valid-preprocessing", "augment", const=False),
    Flag("--identical-replica-seeding", const=True, dropped=_SEED_IGNORES_REPLICA),
    Flag("--cutmix-lambda", "cutmix_lambda", parser=FLOAT),
    # batches and length
    Flag("--batch-size", "batch_size", parser=INT),
    Flag("--gradient-accumulation-count", "gradient_accumulation"),
    Flag("--gradients-to-accumulate", "gradients_to_accumulate", parser=INT),
    Flag("--pipeline-depth", "pipeline_depth", parser=INT),
    Flag("--iterations", "updates"),
    Flag("--batches-per-step", "device_iterations"),
    *canonical_flags("--micro-batch-size --replicas --epochs --epoch --device-iterations"),
    # learning rate
    *canonical_flags(
        "--lr-drops --poly-lr-decay-power --poly-lr-end-ratio --abs-end-learning-rate"
    ),
    Flag("--base-learning-rate", "exponent", parser=FLOAT),
    Flag("--base-learning-rate-exponent", "exponent", parser=FLOAT),
    Flag("--abs-learning-rate", "lr"),
    Flag("--lr-schedule", "lr_schedule", parser=choice_parser(SCHEDULES)),
    Flag("--learning-rate-schedule", "lr_share_decay", parser=FLOATS),
    Flag("--learning-rate-decay", "step_decay", parser=FLOAT),
    Flag("--lr-decay-rate", "exponential_decay", parser=FLOAT),
    Flag("--warmup-epochs", "warmup_epoch"),
    Flag("--poly-lr-end-lr", "abs_end_learning_rate"),
    Flag("--poly-lr-initial-lr", "lr"),
    Flag("--poly-lr-decay-steps", "decay_steps", parser=INT),
    # optimizer, loss, arithmetic
    *canonical_flags(
        "--weight-decay --rmsprop-decay --rmsprop-base-decay-exp --lars-epsilon --lars-eeta "
        "--lars-weight-decay --lars-skip-list --variable-filter --gradient-mean-reduce-re "
        "--loss-scaling --saturate-on-overflow --force-weight-to-fp16 --force-weight-to-fp32 "
        "--offload-fp32-weight-copy"
    ),
    Flag("--optimiser", "optimiser", parser=_parse_optimizer),
    Flag("--momentum", "optimiser_momentum", parser=FLOAT),
    Flag("--rmsprop-epsilon", "optimizer_eps"),
    Flag("--label-smoothing", "smoothing", parser=FLOAT),
    Flag("--precision", "precision", parser=_first_word),
    Flag("--enable-half-partials", "half_partial", const=True),
    Flag("--no-stochastic-rounding", "enable_stochastic_rounding", const=False),
    Flag("--stochastic-rounding", "enable_stochastic_rounding", parser=_parse_rounding_mode),
    Flag("--fp-exceptions", "enable_fp_exceptions", const=True),
    # pipeline and memory
    Flag("--pipeline", "pipeline", const=True),
    Flag("--pipeline-schedule", "pipeline_schedule", parser=lower_case),
    Flag("--enable-recomputation", "enable_recompute", const=True),
    Flag("--xla-recompute", "enable_recompute", const=True),
    Flag("--disable-variable-offloading", "offload_optimizer", const=False),
    Flag("--rts", "enable_optimizer_rts", const=True),
    Flag("--available-memory-proportion", "proportions", parser=FLOATS, is_list=True),
    *canonical_flags(
        "--shards --pipeline-splits --sharding-include-filter --sharding-exclude-filter "
        "--enable-recompute --min-remote-tensor-size --max-cross-replica-buffer-size "
        "--max-reduce-many-buffer-size"
    ),
    # processes
    Flag("--distributed", "distributed", const=True),
    Flag("--syncs-per-epoch", parser=INT, dropped=_REPLICAS_IN_SYNC),
    Flag("--epochs-per-sync", parser=FLOAT, dropped=_REPLICAS_IN_SYNC),
    Flag("--ckpt-all-instances", dropped=_RANK_0_WRITES),
    Flag("--log-all-instances", dropped=_RANK_0_WRITES),
    # checkpoints and averages
    *canonical_flags(
        "--ckpts-per-epoch --epochs-per-ckpt --ckpt-epochs-offset --max-ckpts-to-keep --init-path "
        "--wandb-id"
    ),
    Flag("--restore-path", TARGET),
    Flag("--weight-avg-N", "mean_of", parser=INTS, is_list=True),
    Flag("--weight-avg-exp", "average_decay", parser=FLOATS, is_list=True),
    Flag("--filename", dropped="an average is written beside its checkpoints"),
    Flag("-N", "weight_avg_n"),
    Flag("--mode", "weight_avg_strategy"),
    Flag("--decay", "weight_avg_exp_decay"),
    Flag("--discard-last", "discard_last", parser=INT),
    # validation and inference
    *canonical_flags(
        "--valid-batch-size --repeat --latency --num-inference-thread --force-recompile --tmp-execs"
    ),
    Flag("--no-validation", "validates", const=False, yaml_key="validation"),
    Flag("--inference", dropped="validation always computes its metrics once, at the end"),
    Flag("--total-batch-size", dropped="a checkpoint contains its epoch"),
    # logs
    *canonical_flags(
        "--log-dir --name-suffix --logs-per-epoch --log-freq --no-logs --mlperf-logging --wandb "
        "--wandb-project --analyse-nans --profile --profile-compilation"
    ),
    Flag("--logs-path", "checkpoint_output_path"),
    Flag("--gc-profile", "profile_level", parser=choice_parser(PROFILES), value_if_bare=True),
    Flag("--dataset-benchmark", "dataset_benchmark", const=True),
    # device and compiler
    *canonical_flags(
        "--compile-only --executable-cache-path --num-io-tiles --enable-conv-dithering "
        "--gather-conv-output --only-use-slic-vmac-16 --scheduling-algorithm --gcl-method "
        "--gcl-max-broadcast-size --poplar-sync-configuration"
    ),
    Flag("--select-ipu", "select_devices", parser=_parse_device_ids),
    Flag("--select-ipus", "select_devices", parser=_parse_device_ids),
    Flag("--on-demand", const=True, dropped="a device is acquired when it is first used"),
    Flag("--internal-exchange-optimisation-target", "exchange_memory_target", parser=lower_case),
)


@cache
def tensorflow() -> Dialect:
    """The training program."""
    return Dialect(
        NAME, FLAGS, defaults=tensorflow_defaults, combiners=COMBINERS, help_texts=HELP_TEXTS
    )


@cache
def tensorflow_validation() -> Dialect:
    """The validation and inference programs: the same flags, without a pipeline."""
    return replace(tensorflow(), combiners=(shards_become_replicas, *COMBINERS))
