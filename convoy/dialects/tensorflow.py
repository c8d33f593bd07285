"""The TensorFlow program (`train.py`, `restore.py`, `validation.py`, …): its flags and how it
spells values.

`tensorflow_combined` has the options that several flags make together, `tensorflow_defaults` what
the program does when nothing is said.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache

from convoy.config.flags import TARGET, Dialect, Flag, lower_case, one_of, same
from convoy.config.option import ValueType, WrongType
from convoy.dialects.tensorflow_combined import COMBINERS, shards_become_replicas
from convoy.dialects.tensorflow_defaults import tensorflow_defaults

NAME = "tensorflow"
SCHEDULES = {
    "stepped": "step",
    "cosine": "cosine",
    "exponential": "exponential",
    "polynomial_decay_lr": "polynomial",
}
OPTIMIZERS = ("sgd", "momentum", "rmsprop", "lars")
# The modes of ON differ in how replicas agree; here they always do.
ROUNDINGS = {"ON": True, "ON_prng_stable": True, "RI_prng_stable": True, "OFF": False}
PROFILES = ("NO_PROFILE", "DEVICE_PROFILE", "IPU_PROFILE", "TILE_PROFILE")
INT, INTS = ValueType(int).read, ValueType(int, many=True).read
FLOAT, FLOATS = ValueType(float).read, ValueType(float, many=True).read
USUAL_DECAY = Fraction("0.97")  # of batch statistics, when nothing is said


def _as_written(words: list[str]) -> str:
    """`16.16`, which a file may have read as a number."""
    return words[0]


def _momentum_from_decay(words: list[str]) -> float:
    """0.97 of the old statistics kept is 0.03 of the new ones added; 0 stands for 0.97."""
    decay = ValueType(float).read(words)
    if not 0 <= decay < 1:
        raise WrongType(f"must be at least 0 and below 1, got {words[0]}")
    return float(1 - (Fraction(str(decay)) or USUAL_DECAY))


def _device_numbers(words: list[str]) -> tuple[int, ...]:
    """AUTO takes what there is."""
    if [word.lower() for word in words] == ["auto"]:
        return ()
    numbers: tuple[int, ...] = ValueType(int, many=True).read(words)
    return numbers


SAYS: Mapping[str, str] = {
    "--model": "`--model`, with `--model-size`",
    "--model-size": "`--model`, with the family",
    "--batch-norm": "`--norm-type batch`",
    "--group-norm": "`--norm-type group`; with both, EfficientNet takes batch and the others group",
    "--BN-decay": "`--batchnorm-momentum`: 1 − the share kept, so 0.97 is 0.03; 0 means 0.97",
    "--force-unstable-norm": "`--no-stable-norm`",
    "--dataset": "`--data`; unsaid, the name of the folder tells, or imagenet",
    "--generated-data": "`--data generated` with the samples and classes of the data set",
    "--synthetic-data": "`--data synthetic` with the samples and classes of the data set",
    "--hostside-norm": "`--normalization-location host`",
    "--no-hostside-norm": "`--normalization-location device`",
    "--fused-preprocessing": "`--normalization-location device --input-image-padding`",
    "--cutmix-lambda": "`--cutmix-lambda-low` and `--cutmix-lambda-high`, both this; 1 is off",
    "--cutmix-version": "`--cutmix-version`; unsaid 1",
    "--batch-size": "`--micro-batch-size`",
    "--gradients-to-accumulate": "`--gradient-accumulation`",
    "--pipeline-depth": "`--gradient-accumulation`",
    "--iterations": "`--updates`; exactly so many, where there the last step was filled up",
    "--base-learning-rate": (
        "`--base-learning-rate-exponent`: the rate is 2^N × all samples of an update; 0 "
        "counts as unsaid"
    ),
    "--base-learning-rate-exponent": "`--base-learning-rate-exponent`; 0 counts as unsaid",
    "--lr-schedule": "`--lr-schedule`: stepped is step, polynomial_decay_lr is polynomial",
    "--learning-rate-schedule": "`--lr-share-decay`",
    "--learning-rate-decay": "`--lr-decay`, when the schedule is stepped",
    "--lr-decay-rate": "`--lr-decay`, when the schedule is exponential",
    "--lr-drops": "`--lr-drops`, when the schedule is exponential",
    "--poly-lr-decay-steps": "nothing: polynomial ends with the run",
    "--optimiser": (
        "`--optimizer` and `--momentum`: SGD has none, momentum is sgd_combined, RMSprop is "
        "rmsprop_tf"
    ),
    "--momentum": "`--momentum`, unless the optimizer is SGD",
    "--label-smoothing": "`--label-smoothing` with `--label-smoothing-over others`",
    "--stochastic-rounding": (
        "`--enable-stochastic-rounding`, off for OFF; replicas agree in any mode"
    ),
    "--pipeline": "`--shards` above 1; with 1, stages take turns: `--pipeline-schedule sequential`",
    "--available-memory-proportion": (
        "`--available-memory-proportion`; of two values a stage the first"
    ),
    "--distributed": "nothing by itself: TF_CONFIG gives the instances",
    "--restore-path": "the run or checkpoint behind `convoy resume`, `validate` or `average`",
    "--weight-avg-N": (
        "`--weight-avg-strategy mean --weight-avg-n`: N epochs back are N × checkpoints "
        "per epoch + 1"
    ),
    "--weight-avg-exp": "`--weight-avg-strategy exponential --weight-avg-exp-decay`",
    "--discard-last": "refused above 0",
    "--no-validation": "`--validation-mode none`",
    "--gc-profile": "`--profile`, unless NO_PROFILE",
    "--dataset-benchmark": "`convoy data bench`: no training, its data alone",
    "--select-ipu": "`--select-devices`; AUTO is unset",
    "--select-ipus": "`--select-devices`; AUTO is unset",
}

_EQUAL = "all replicas hold the same bits, and that is checked"
_ONE_WRITES = "one process writes, for all"

FLAGS = (
    # the network
    Flag("--model", "family", read=lower_case),
    Flag("--model-size", "size"),
    Flag("--convolution-groups", "cardinality"),
    *same("--group-dim --expand-ratio --widenet --dropout-rate --block-survival-prob"),
    Flag("--no-se", "squeeze_excite", means=False),
    *same(
        "--depth-divisor --top-width --use-relu --width-coefficient --depth-coefficient "
        "--use-bypass"
    ),
    # normalization
    Flag("--batch-norm", "batch_norm", means=True),
    Flag("--group-norm", "group_norm", means=True),
    Flag("--groups", "norm_num_groups"),
    Flag("--norm-epsilon", "norm_eps"),
    Flag("--BN-decay", "batchnorm_momentum", read=_momentum_from_decay),
    *same("--BN-span --stable-norm"),
    Flag("--force-unstable-norm", "stable_norm", means=False),
    *same("--proxy-norm --proxy-epsilon"),
    Flag("--no-proxy-recompute", "proxy_recompute", means=False, key="proxy_recompute"),
    # data
    Flag("--dataset", "dataset", read=lower_case),
    *same("--data-dir"),
    Flag("--generated-data", "made", means="generated"),
    Flag("--synthetic-data", "made", means="synthetic"),
    *same("--image-size"),
    Flag("--standard-imagenet", means=True, why="samples always come in a plain seeded order"),
    *same("--no-dataset-cache --pipeline-num-parallel --dataset-percentage-to-use --eight-bit-io"),
    Flag("--hostside-norm", "normalization_location", means="host"),
    Flag("--no-hostside-norm", "normalization_location", means="device"),
    Flag("--normalise-input", "normalize_std", means=True),
    Flag("--fused-preprocessing", "fused", means=True),
    Flag("--train-with-valid-preprocessing", "augment", means=False),
    *same("--prefetch-depth --seed"),
    Flag("--identical-replica-seeding", means=True, why="chance never depends on the replica"),
    *same("--mixup-alpha"),
    Flag("--cutmix-lambda", "cutmix_lambda", read=FLOAT),
    *same("--cutmix-version --hostside-image-mixing"),
    # batches and length
    Flag("--batch-size", "batch_size", read=INT),
    *same("--micro-batch-size"),
    Flag("--gradient-accumulation-count", "gradient_accumulation"),
    Flag("--gradients-to-accumulate", "gradients_to_accumulate", read=INT),
    Flag("--pipeline-depth", "pipeline_depth", read=INT),
    *same("--replicas --epochs --epoch"),
    Flag("--iterations", "updates"),
    Flag("--batches-per-step", "device_iterations"),
    *same("--device-iterations"),
    # learning rate
    Flag("--base-learning-rate", "exponent", read=FLOAT),
    Flag("--base-learning-rate-exponent", "exponent", read=FLOAT),
    Flag("--abs-learning-rate", "lr"),
    Flag("--lr-schedule", "lr_schedule", read=one_of(SCHEDULES)),
    Flag("--learning-rate-schedule", "lr_share_decay", read=FLOATS),
    Flag("--learning-rate-decay", "step_decay", read=FLOAT),
    Flag("--lr-decay-rate", "exponential_decay", read=FLOAT),
    *same("--lr-drops"),
    Flag("--warmup-epochs", "warmup_epoch"),
    *same("--poly-lr-decay-power --poly-lr-end-ratio --abs-end-learning-rate"),
    Flag("--poly-lr-end-lr", "abs_end_learning_rate"),
    Flag("--poly-lr-initial-lr", "lr"),
    Flag("--poly-lr-decay-steps", "decay_steps", read=INT),
    # optimizer, loss, arithmetic
    Flag(
        "--optimiser",
        "optimiser",
        read=one_of(OPTIMIZERS, str.lower, "SGD, momentum, RMSprop or LARS"),
    ),
    Flag("--momentum", "optimiser_momentum", read=FLOAT),
    *same("--weight-decay --rmsprop-decay --rmsprop-base-decay-exp"),
    Flag("--rmsprop-epsilon", "optimizer_eps"),
    *same(
        "--lars-epsilon --lars-eeta --lars-weight-decay --lars-skip-list --variable-filter "
        "--gradient-mean-reduce-re"
    ),
    Flag("--label-smoothing", "smoothing", read=FLOAT),
    *same("--loss-scaling"),
    Flag("--precision", "precision", read=_as_written),
    Flag("--enable-half-partials", "half_partial", means=True),
    Flag("--no-stochastic-rounding", "enable_stochastic_rounding", means=False),
    Flag("--stochastic-rounding", "enable_stochastic_rounding", read=one_of(ROUNDINGS)),
    Flag("--fp-exceptions", "enable_fp_exceptions", means=True),
    *same(
        "--saturate-on-overflow --force-weight-to-fp16 --force-weight-to-fp32 "
        "--offload-fp32-weight-copy"
    ),
    # pipeline and memory
    *same("--shards"),
    Flag("--pipeline", "pipeline", means=True),
    *same("--pipeline-splits"),
    Flag("--pipeline-schedule", "pipeline_schedule", read=lower_case),
    *same("--sharding-include-filter --sharding-exclude-filter"),
    Flag("--enable-recomputation", "enable_recompute", means=True),
    Flag("--xla-recompute", "enable_recompute", means=True),
    *same("--enable-recompute"),
    Flag("--disable-variable-offloading", "offload_optimizer", means=False),
    *same("--min-remote-tensor-size"),
    Flag("--rts", "enable_optimizer_rts", means=True),
    Flag("--available-memory-proportion", "proportions", read=FLOATS, several=True),
    *same("--max-cross-replica-buffer-size --max-reduce-many-buffer-size"),
    # processes
    Flag("--distributed", "distributed", means=True),
    Flag("--syncs-per-epoch", read=INT, why=_EQUAL),
    Flag("--epochs-per-sync", read=FLOAT, why=_EQUAL),
    Flag("--ckpt-all-instances", why=_ONE_WRITES),
    Flag("--log-all-instances", why=_ONE_WRITES),
    # checkpoints and averages
    *same("--ckpts-per-epoch --epochs-per-ckpt --ckpt-epochs-offset --max-ckpts-to-keep"),
    Flag("--restore-path", TARGET),
    *same("--init-path --wandb-id"),
    Flag("--weight-avg-N", "mean_of", read=INTS, several=True),
    Flag("--weight-avg-exp", "average_decay", read=FLOATS, several=True),
    Flag("--filename", why="an average lies beside the checkpoints it was made of"),
    Flag("-N", "weight_avg_n"),
    Flag("--mode", "weight_avg_strategy"),
    Flag("--decay", "weight_avg_exp_decay"),
    Flag("--discard-last", "discard_last", read=INT),
    # validation and inference
    Flag("--no-validation", "validates", means=False, key="validation"),
    *same("--valid-batch-size --repeat"),
    Flag("--inference", why="the sums of a validation are taken once, at its end"),
    Flag("--total-batch-size", why="a checkpoint knows its own epoch"),
    *same("--latency --num-inference-thread --force-recompile --tmp-execs"),
    # logs
    *same("--log-dir"),
    Flag("--logs-path", "checkpoint_output_path"),
    *same(
        "--name-suffix --logs-per-epoch --log-freq --no-logs --mlperf-logging --wandb "
        "--wandb-project --analyse-nans"
    ),
    Flag("--gc-profile", "profile_level", read=one_of(PROFILES), bare=True),
    *same("--profile --profile-compilation"),
    Flag("--dataset-benchmark", "dataset_benchmark", means=True),
    # device and compiler
    Flag("--select-ipu", "select_devices", read=_device_numbers),
    Flag("--select-ipus", "select_devices", read=_device_numbers),
    Flag("--on-demand", means=True, why="a device is taken when it is first needed"),
    *same("--compile-only --executable-cache-path"),
    Flag("--internal-exchange-optimisation-target", "exchange_memory_target", read=lower_case),
    *same(
        "--num-io-tiles --enable-conv-dithering --gather-conv-output --only-use-slic-vmac-16 "
        "--scheduling-algorithm --gcl-method --gcl-max-broadcast-size "
        "--poplar-sync-configuration"
    ),
)


@cache
def tensorflow() -> Dialect:
    """Training."""
    return Dialect(NAME, FLAGS, defaults=tensorflow_defaults, combiners=COMBINERS, says=SAYS)


@cache
def tensorflow_validation() -> Dialect:
    """Validation and inference: the same words, without a pipeline."""
    return replace(tensorflow(), combiners=(shards_become_replicas, *COMBINERS))
