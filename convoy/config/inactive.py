"""When an option has no effect, and why. The declarations in sections/ refer to these conditions.

A condition takes the RunConfig and returns the rest of the sentence `--option has no effect …`, or
None where the option has an effect.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from convoy.config.catalog import AUGMENTED, DATA, ENCODED, MODELS
from convoy.config.values import spelled

# A RunConfig: it is made of the sections that use these conditions, so its type is not named here.
Run = Any
Condition = Callable[[Run], str | None]


def when(holds: Callable[[Run], Any], why: str) -> Condition:
    """No effect where this holds; the reason may name values of the run, as `{run.data.data}`."""
    return lambda run: why.format(run=run) if holds(run) else None


def unless(name: str, *values: Any, why: str = "") -> Condition:
    """An effect only where another option has one of these values."""
    return _depends(name, lambda value: value in values, why)


def where(name: str, *values: Any, why: str = "") -> Condition:
    """No effect where another option has one of these values."""
    return _depends(name, lambda value: value not in values, why)


def without(name: str) -> Condition:
    """No effect unless another option is given."""
    return when(lambda run: not _value(run, name), f"without {_flag(name)}")


def _depends(name: str, has_effect: Callable[[Any], bool], why: str) -> Condition:
    def condition(run: Run) -> str | None:
        value = _value(run, name)
        if has_effect(value):
            return None
        if isinstance(value, bool):
            words = _flag(name) if value else _flag(f"no_{name}")
        else:
            words = f"{_flag(name)} {spelled(value)}"
        return f"with {words}: {why}" if why else f"with {words}"

    return condition


def _value(run: Run, name: str) -> Any:
    return next(vars(section)[name] for section in vars(run).values() if name in vars(section))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# The network

_FAMILIES = {
    "resnet": "ResNet",
    "resnext": "ResNeXt",
    "efficientnet": "EfficientNet",
    "mobilenet": "MobileNet",
    "squeezenet": "SqueezeNet",
}


def unless_model(*families: str) -> Condition:
    """Only networks of these families have it."""
    owners = " and ".join(_FAMILIES[family] for family in families)
    verb = "has" if len(families) == 1 else "have"
    return when(
        lambda run: MODELS[run.network.model].family not in families,
        f"with --model {{run.network.model}}: only {owners} {verb} it",
    )


def unless_norm(norm_type: str) -> Condition:
    """Only norms of this type have it."""
    of_type = unless("norm_type", norm_type)
    return lambda run: no_norms(run) or of_type(run)


not_a_resnet = unless_model("resnet", "resnext")
not_efficientnet = unless_model("efficientnet")
no_bottlenecks = when(
    lambda run: not MODELS[run.network.model].bottleneck,
    "with --model {run.network.model}: it has no bottlenecks",
)
model_is_wide = when(
    lambda run: not MODELS[run.network.model].small,
    "with --model {run.network.model}: it is wide already",
)
model_has_no_norms = when(
    lambda run: MODELS[run.network.model].family == "squeezenet",
    "with --model squeezenet: it has no norms",
)


def no_norms(run: Run) -> str | None:
    return model_has_no_norms(run) or where("norm_type", "none")(run)


# The data

no_files_to_read = unless(
    "data", *(name for name in DATA if DATA[name].on_disk), why="there are no files to read"
)
data_is_not_augmented = unless("data", *AUGMENTED, why="it has no crops and flips")
no_image_files = unless("data", ENCODED, why=f"only {ENCODED} has files of images")
data_is_in_memory = unless("data", "shapes", ENCODED, why="it is always in memory")
no_workers = where("dataloader_worker", 0)
no_augmentation = unless("augment", True)
no_cache = unless("dataset_cache", True)
# Synthetic images lie on the device; those of its validation do not.
no_images_from_host = when(
    lambda run: run.data.data == "synthetic" and run.validation.validation_mode == "none",
    "with --data synthetic and --validation-mode none",
)
# Images of validation are not mixed, and may be bytes.
mixup_on_host = when(
    lambda run: run.mixing.blends_on_host and run.validation.validation_mode == "none",
    "with --hostside-image-mixing: mixup takes normalized floats",
)
bytes_are_normalized_on_device = when(
    lambda run: run.data.eight_bit_io and run.data.normalization_location == "host",
    "with --eight-bit-io",
)
# Each process would keep its own; the system keeps files for all of them.
loader_processes_keep_nothing = when(
    lambda run: (
        run.data.data == ENCODED
        and run.data.dataloader_kind == "processes"
        and run.data.dataloader_worker != 0
    ),
    "with --dataloader-kind processes: the system keeps the files",
)
cache_ratio_is_given = when(
    lambda run: run.data.webdataset_memory_cache_ratio is not None,
    "beside --webdataset-memory-cache-ratio",
)
synthetic_is_not_mixed = when(
    lambda run: run.data.data == "synthetic" and run.mixing.mixes,
    "with --data synthetic: its one micro-batch stays as it is",
)
no_cutmix = when(lambda run: not run.mixing.cuts, "without --cutmix-lambda-high")
no_mixing = when(lambda run: not run.mixing.mixes, "without --mixup-alpha or --cutmix-lambda-high")


def one_micro_batch_per_worker(run: Run) -> str | None:
    """Each worker prepares one micro-batch, however few are wanted ahead."""
    workers = run.data.dataloader_worker or 1
    return f"below --dataloader-worker {workers}" if run.data.prefetch_depth < workers else None


def mixup_normalizes_on_host(run: Run) -> str | None:
    return mixup_on_host(run) if run.data.normalization_location == "device" else None


def cutmix_takes_lower_bound(run: Run) -> str | None:
    """Without a lower bound the upper one still says that there is cutmix."""
    low, high = run.mixing.cutmix_lambda_low, run.mixing.cutmix_lambda_high
    version = run.mixing.cutmix_version
    if version is None or not 0 < low < high:
        return None
    return f"with --cutmix-version {version}: it takes the lower bound"


# The learning rate

step_never_drops = when(
    lambda run: (
        run.learning_rate.lr_schedule == "step"
        and not (run.learning_rate.lr_epoch_decay or run.learning_rate.lr_share_decay)
    ),
    "with --lr-schedule step without --lr-epoch-decay",
)
step_has_multipliers = when(
    lambda run: run.learning_rate.lr_schedule == "step" and run.learning_rate.lr_multipliers,
    "beside --lr-multipliers",
)


def step_drops_on_changes(run: Run) -> str | None:
    """A drop waits for the next change of the rate, but here each falls on one."""
    rate = run.learning_rate
    often = Fraction(str(rate.lr_scheduler_freq))
    if rate.lr_schedule != "step" or not often or rate.lr_share_decay:
        return None
    waits = any((often * Fraction(str(epoch))).denominator > 1 for epoch in rate.lr_epoch_decay)
    return None if waits else "with --lr-schedule step: every drop falls on a change"


# The optimizer

_ONLY_MOMENTUM = ("sgd", "sgd_combined", "lars")  # the velocity is all that these keep

lars_skips_decay = when(
    lambda run: run.optimizer.optimizer == "lars" and run.optimizer.lars_weight_decay is None,
    "with --optimizer lars without --lars-weight-decay: --lars-skip-list says it",
)
no_optimizer_state = when(
    lambda run: run.optimizer.optimizer in _ONLY_MOMENTUM and run.optimizer.momentum == 0,
    "with --momentum 0: there is no state",
)


def no_state_and_no_copy(run: Run) -> str | None:
    """Neither state, nor the true weights of such as are used in fewer bits."""
    precision = run.precision
    forced = precision.offload_fp32_weight_copy or precision.force_weight_to_fp32
    copied = precision.precision == "16.32" or (precision.precision == "16.16" and forced)
    return None if copied else no_optimizer_state(run)


def one_micro_batch(run: Run) -> str | None:
    """One gradient is its own mean and sum, unless a second phase has more."""
    batch, later = run.batch, run.fine_tune
    more = later.half_res_training and later.fine_tune_gradient_accumulation > 1
    is_one = batch.gradient_accumulation * batch.replicas == 1 and not more
    return "with one micro-batch in an update" if is_one else None


# Numbers and the loss scale

no_16_bit_arithmetic = where("precision", "32.32")
fp_exceptions_stop = where("enable_fp_exceptions", True)
all_weights_are_16_bits = when(
    lambda run: run.precision.precision == "16.16" and not run.precision.offload_fp32_weight_copy,
    "with --precision 16.16: every weight has 16 bits",
)
all_weights_have_a_copy = when(
    lambda run: run.precision.offload_fp32_weight_copy,
    "beside --offload-fp32-weight-copy: all weights are kept so",
)


def _keeps_16_bits(run: Run) -> bool:
    """Whether some weights or the optimizer's state have 16 bits in any precision."""
    half_state = run.optimizer.optimizer_state_dtype in ("float16", "bfloat16")
    return bool(run.precision.force_weight_to_fp16) or half_state


def no_16_bit_gradients(run: Run) -> str | None:
    return None if run.precision.force_weight_to_fp16 else no_16_bit_arithmetic(run)


def no_gradient_to_scale(run: Run) -> str | None:
    why = no_16_bit_gradients(run)
    return why and f"{why}: no gradient has 16 bits"


def no_16_bits(run: Run) -> str | None:
    return None if _keeps_16_bits(run) else no_16_bit_arithmetic(run)


def no_16_bits_kept(run: Run) -> str | None:
    precision = run.precision
    is_half = precision.precision == "16.16"
    if _keeps_16_bits(run) or (is_half and not precision.offload_fp32_weight_copy):
        return None
    copied = " and --offload-fp32-weight-copy" if is_half else ""
    return f"with --precision {precision.precision}{copied}: weights and state are kept in 32 bits"


def partial_sums_need_cuda(run: Run) -> str | None:
    """Emulated ones take much longer: only who asks for them gets them."""
    device = run.device.device
    if run.precision.half_arithmetic == "emulated" or device == "cuda":
        return None
    where = "unless the device is CUDA" if device == "auto" else f"with --device {device}"
    return f"{where}; --half-arithmetic emulated rounds partial sums anywhere"


# Devices, stages and replicas

one_device = where("device", "cpu", "mps")
one_stage = when(lambda run: run.pipeline.stages == 1, "with one stage")
one_replica = when(lambda run: run.batch.replicas == 1, "with one replica")
loaders_are_not_shared = when(
    lambda run: run.device.instances > 1, "yet: every replica reads its own samples"
)
# Stages that share a device run as one; only recomputation knows where they begin.
folded_without_recompute = when(
    lambda run: run.pipeline.folds_into_one and run.memory.enable_recompute is False,
    "on one device with --no-enable-recompute",
)


def mapping_without_devices(run: Run) -> str | None:
    """All processes share the one device there is, but a mapping may still fold stages."""
    by_mapping = run.pipeline.folds_into_one and run.pipeline.shards != 1
    return None if by_mapping else one_device(run)


# Checkpoints, averages, validation and reports

no_checkpoints = when(lambda run: not run.checkpoint.saves, "with --ckpts-per-epoch 0")
checkpoint_only_of_a_stop = when(
    lambda run: not run.checkpoint.saves, "with --ckpts-per-epoch 0, unless the run is stopped"
)
stop_must_be_saved = when(
    lambda run: not run.checkpoint.saves,
    "with --ckpts-per-epoch 0: what a stop saves must be written",
)
nothing_to_average = when(
    lambda run: not run.checkpoint.saves and run.average.weight_avg_strategy != "none",
    "with --ckpts-per-epoch 0: a run averages its checkpoints, and there are none",
)
no_average = where("weight_avg_strategy", "none", why="`convoy average` takes it")
fewer_are_kept = when(
    lambda run: 0 < run.checkpoint.keep_last < run.average.weight_avg_n,
    "above --keep-last {run.checkpoint.keep_last}",
)
ema_is_never_used = when(
    lambda run: not run.checkpoint.saves and run.validation.validation_mode == "none",
    "with --ckpts-per-epoch 0 and --validation-mode none: it is neither kept nor measured",
)
no_validation = where("validation_mode", "none", why="`convoy validate` takes it")
folder_is_given = when(
    lambda run: run.checkpoint.checkpoint_output_path is not None, "beside --output"
)


def only_for_validate(run: Run) -> str | None:
    del run
    return "on training: `convoy validate` takes it"
