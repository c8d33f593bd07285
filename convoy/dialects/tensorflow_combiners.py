"""Flags of the TensorFlow program that map to canonical options only in combination.

Each combiner takes its flags out of the translation and sets the options they determine together.
The order matters: later combiners see the options that earlier ones have set.
"""

from typing import Any

from convoy.config.flags import DATA_BENCH_NOTE, Combiner, Translation
from convoy.config.option import OptionTypeError
from convoy.config.schema import Setting, setting_values
from convoy.config.sections.data import DATA
from convoy.dialects.tensorflow_defaults import (
    default_model_size,
    guess_dataset,
    is_cifar,
    model_family,
    model_name,
    model_size,
    parse_dataset,
)

_DATASET_BY_CLASSES: dict[Any, str] = {10: "cifar10", 100: "cifar100"}


def _combine_data(flags: Translation) -> None:
    """Select the data; generated data has the samples and classes of the dataset it replaces."""
    named, generated = flags.pop("dataset"), flags.pop("generated")
    folder = flags.settings.get("data_dir") or flags.base.get("data_dir")
    chosen = parse_dataset(named.value) if named else _infer_dataset(flags, folder)
    if generated is None:
        source = named or (None if "data" in flags.base else folder)
        if chosen is not None and source is not None:
            flags.set_option("data", chosen, source)
        return
    replaced = DATA[chosen or "imagenet"]
    flags.set_option("data", generated.value, generated)
    flags.set_default("samples", replaced.train, generated, named)
    flags.set_default("num_classes", replaced.classes, generated, named)
    if replaced.image_size is not None:
        flags.set_default("image_size", replaced.image_size, generated, named)


def _infer_dataset(flags: Translation, folder: Setting | None) -> str | None:
    """Return the dataset of the configuration, or guess it from the folder's name."""
    base = setting_values(flags.base)
    if "data" not in base:
        return guess_dataset(folder.value) if folder else None
    if _is_generated_data(flags):
        return _DATASET_BY_CLASSES.get(base.get("num_classes"), "imagenet")
    name: str | None = base["data"]
    return name


def _is_generated_data(flags: Translation) -> bool:
    return flags.get("data") in ("generated", "synthetic")


def _is_cifar(flags: Translation) -> bool:
    return is_cifar(setting_values(flags.base) | setting_values(flags.settings))


def _combine_model(flags: Translation) -> None:
    """Combine family and size, each from its flag, the configuration or the default."""
    family, size = flags.pop("family"), flags.pop("size")
    if family is None and size is None:
        return
    current, small = flags.get("model"), _is_cifar(flags)
    chosen = family.value if family else model_family(current or "")
    if size is not None:
        chosen_size = str(size.value)
    elif current is not None and model_family(current) == chosen:
        chosen_size = model_size(current)
    else:
        chosen_size = default_model_size(chosen, small)
    flags.set_option("model", model_name(chosen, chosen_size, small), family, size)


def _combine_norm_type(flags: Translation) -> None:
    """Select the norm; with both flags, EfficientNet uses batch and other models group norm."""
    batch, group = _pop_if_true(flags, "batch_norm"), _pop_if_true(flags, "group_norm")
    if batch or group:
        efficient = model_family(flags.get("model", "")) == "efficientnet"
        is_batch = batch and (efficient or not group)
        flags.set_option("norm_type", "batch" if is_batch else "group", batch, group)


def _pop_if_true(flags: Translation, name: str) -> Setting | None:
    setting = flags.pop(name)
    return setting if setting is not None and setting.value else None


def _combine_batch_size(flags: Translation) -> None:
    accumulate, depth = flags.pop("gradients_to_accumulate"), flags.pop("pipeline_depth")
    if accumulate and depth:
        raise OptionTypeError(
            "--gradients-to-accumulate and --pipeline-depth set the same option; use only one"
        )
    if count := accumulate or depth:
        if "gradient_accumulation" in flags.settings:
            raise OptionTypeError(
                f"{count.source} and --gradient-accumulation-count set the same option; "
                "use only one"
            )
        flags.set_option("gradient_accumulation", count.value, count)
    if size := flags.pop("batch_size"):
        if "micro_batch_size" in flags.settings:
            raise OptionTypeError(
                "--batch-size and --micro-batch-size set the same option; use only one"
            )
        flags.set_option("micro_batch_size", size.value, size)


def _combine_length(flags: Translation) -> None:
    """Set the length: updates win over epochs, and each unit has its own log interval."""
    if "updates" in flags.settings and (epochs := flags.pop("epoch")) is not None:
        flags.add_dropped(epochs.source, "--iterations sets the length")
    in_updates = "epoch" not in flags.settings and flags.get("updates") is not None
    if in_updates:
        _drop_all(flags, ["logs_per_epoch"], "the length is in updates; use --log-freq")
    else:
        _drop_all(flags, ["log_freq"], "the length is in epochs; use --logs-per-epoch")


def _drop_all(flags: Translation, names: list[str], reason: str) -> None:
    for name in names:
        if (setting := flags.pop(name)) is not None:
            flags.add_dropped(setting.source, reason)


def _combine_learning_rate(flags: Translation) -> None:
    """Set the rate to 2^N × samples per update; an absolute rate wins, and 0 is the default."""
    if "abs_end_learning_rate" in flags.settings and "poly_lr_end_ratio" in flags.settings:
        ratio = flags.settings.pop("poly_lr_end_ratio")
        flags.add_dropped(
            f"--poly-lr-end-ratio {ratio.value:g}", "--abs-end-learning-rate takes precedence"
        )
    exponent = flags.pop("exponent")
    if exponent is None:
        return
    if exponent.value == 0:
        flags.add_dropped(exponent.source, "an exponent of 0 selects the default")
    elif "lr" in flags.settings:
        flags.add_dropped(exponent.source, "--abs-learning-rate takes precedence")
    else:
        flags.set_option("base_learning_rate_exponent", exponent.value, exponent)


# Values that a schedule must not inherit from the configuration of another one.
_SCHEDULE_DEFAULTS: dict[str, dict[str, Any]] = {
    "step": {"lr_decay": 0.1, "lr_drops": None},
    "exponential": {"lr_decay": 0.97, "lr_drops": 146},
}


def _combine_lr_schedule(flags: Translation) -> None:
    """Set the decay from the flag of the chosen schedule."""
    decays = {"step": flags.pop("step_decay"), "exponential": flags.pop("exponential_decay")}
    _drop_all(flags, ["decay_steps"], "the polynomial schedule ends with the run")
    chosen = flags.get("lr_schedule", "step")
    for schedule, decay in decays.items():
        if decay is not None and schedule == chosen:
            flags.set_option("lr_decay", decay.value, decay)
        elif decay is not None:
            flags.add_dropped(decay.source, f"the schedule is {chosen}")
    if chosen != "exponential":
        _drop_all(flags, ["lr_drops"], f"the schedule is {chosen}")
    typed, configured = flags.settings.get("lr_schedule"), flags.base.get("lr_schedule")
    if typed is not None and configured is not None and configured.value != chosen:
        for name, value in _SCHEDULE_DEFAULTS.get(chosen, {"lr_drops": None}).items():
            flags.set_default(name, value, typed)


_OPTIMIZERS = {"sgd": "sgd", "momentum": "sgd_combined", "rmsprop": "rmsprop_tf", "lars": "lars"}


def _combine_optimizer(flags: Translation) -> None:
    """Select the optimizer: plain SGD has no momentum, and `momentum` is sgd_combined."""
    rule, momentum = flags.pop("optimiser"), flags.pop("optimiser_momentum")
    if rule is None:
        plain = flags.get("optimizer", "sgd") == "sgd" and not flags.get("momentum")
        if momentum is not None and not plain:
            flags.set_option("momentum", momentum.value, momentum)
    else:
        plain = rule.value == "sgd"
        default = flags.get("momentum") or 0.9  # the configuration may set it
        chosen = momentum.value if momentum else default
        flags.set_option("optimizer", _OPTIMIZERS[rule.value], rule)
        flags.set_option("momentum", 0.0 if plain else chosen, rule if plain else momentum or rule)
    if momentum is not None and plain:
        flags.add_dropped(momentum.source, "plain SGD has no momentum")


def _combine_label_smoothing(flags: Translation) -> None:
    """Set label smoothing; the TensorFlow program gives ε only to the other classes."""
    epsilon = flags.pop("smoothing")
    if epsilon is not None:
        flags.set_option("label_smoothing", epsilon.value, epsilon)
        if epsilon.value:
            flags.set_option("label_smoothing_over", "others", epsilon)


def _combine_mixing(flags: Translation) -> None:
    """Set both CutMix bounds from one flag. Generated data is not mixed."""
    if _is_generated_data(flags):
        _disable_mixing(flags)
        return
    bound = flags.pop("cutmix_lambda")
    if bound is None:
        return
    if bound.value == 0:
        raise OptionTypeError(
            f"{bound.source} must be greater than 0: it is the fraction of the image that is kept"
        )
    share = 0.0 if bound.value == 1 else bound.value
    flags.set_option("cutmix_lambda_low", share, bound)
    flags.set_option("cutmix_lambda_high", share, bound)
    if share and flags.get("cutmix_version") is None:
        flags.set_option("cutmix_version", 1, bound)


def _disable_mixing(flags: Translation) -> None:
    """Drop mixing flags, and reset the mixing options of a configuration."""
    data = flags.settings.get("data") or flags.base["data"]
    names = ["mixup_alpha", "cutmix_lambda", "cutmix_version"]
    _drop_all(flags, names, "generated data is not mixed")
    for name in ("mixup_alpha", "cutmix_lambda_low", "cutmix_lambda_high"):
        if flags.get(name):
            flags.set_option(name, 0.0, data)


def _combine_preprocessing(flags: Translation) -> None:
    """Expand fused preprocessing: normalize on the device, and pad to four channels."""
    fused = _pop_if_true(flags, "fused")
    if fused is None:
        return
    if _is_cifar(flags):
        flags.add_dropped(fused.source, "it applies to ImageNet only")
        return
    location = flags.settings.get("normalization_location")
    if location is not None and location.value == "host":
        flags.add_dropped(location.source, "--fused-preprocessing normalizes on the device")
    flags.set_option("normalization_location", "device", fused)
    flags.set_option("input_image_padding", True, fused)


def _combine_workers(flags: Translation) -> None:
    """Map the workers of TF_CONFIG to instances; `--replicas` counts those of each instance."""
    distributed = flags.pop("distributed")
    if distributed is not None and "instances" in flags.settings:
        flags.add_note(distributed, "the workers of TF_CONFIG are instances")
    elif distributed is not None:
        flags.add_dropped("--distributed", "TF_CONFIG does not list other workers")


def _combine_pipeline(flags: Translation) -> None:
    """Set the stages, which need `--pipeline`; on one device they run in turn."""
    enabled = flags.pop("pipeline")
    splits, shards = flags.get("pipeline_splits", ()), flags.get("shards", 1)
    base = setting_values(flags.base)
    has_stages = (base.get("shards") or 1) > 1 or base.get("pipeline_splits")
    if not has_stages and not (enabled and enabled.value):
        if shards > 1:
            raise OptionTypeError(f"--shards {shards} needs --pipeline")
        if len(splits) > 1:
            raise OptionTypeError(f"--pipeline-splits {' '.join(splits)} needs --pipeline")
    source = flags.settings.get("shards") or enabled or flags.settings.get("pipeline_splits")
    if enabled is not None and shards <= 1 and not splits:
        flags.add_dropped(enabled.source, "there is only one stage")
    elif enabled is not None:
        flags.add_note(enabled, f"stages run {'concurrently' if shards > 1 else 'in turn'}")
    if shards == 1 and splits and source is not None:
        schedule = flags.settings.get("pipeline_schedule")
        if schedule is not None and schedule.value != "sequential":
            flags.add_dropped(schedule.source, "stages on one device run in turn")
        flags.set_option("shards", 1, source)
        flags.set_option("pipeline_schedule", "sequential", source)


def _combine_memory_proportions(flags: Translation) -> None:
    """Set one proportion for all stages, or the first of two per stage (the convolutions)."""
    proportions = flags.pop("proportions")
    if proportions is None:
        return
    shards, count = flags.get("shards", 1), len(proportions.value)
    if count not in (1, 2 * shards):
        raise OptionTypeError(
            f"--available-memory-proportion takes 1 value, or 2 for each of {shards} "
            f"shards ({2 * shards}), got {count}"
        )
    flags.set_option("available_memory_proportion", proportions.value[::2], proportions)


def _combine_weight_averages(flags: Translation) -> None:
    """Set the average: N epochs there are N × checkpoints per epoch + 1 checkpoints here."""
    mean, decay = flags.pop("mean_of"), flags.pop("average_decay")
    discard = flags.pop("discard_last")
    if discard is not None and discard.value:
        raise OptionTypeError("--discard-last is not available in this version; leave it out")
    if discard is not None:
        flags.add_note(discard, "no checkpoint is discarded")
    decays: tuple[float, ...] = decay.value if decay else ()
    means: tuple[int, ...] = mean.value if mean else ()
    if decay is not None:
        flags.set_option("weight_avg_strategy", "exponential", decay)
        flags.set_option("weight_avg_exp_decay", decays[0], decay)
        decays = decays[1:]
    elif mean is not None:
        flags.set_option("weight_avg_strategy", "mean", mean)
        every, per_epoch = flags.get("epochs_per_ckpt", 0), flags.get("ckpts_per_epoch", 1)
        back = means[0] // every if every else means[0] * per_epoch
        flags.set_option("weight_avg_n", back + 1, mean)
        means = means[1:]
    reason = "a run computes one average; `convoy average` computes others from its checkpoints"
    for spelling, rest in (("--weight-avg-exp", decays), ("--weight-avg-N", means)):
        if rest:
            flags.add_dropped(" ".join([spelling, *map(str, rest)]), reason)


def _combine_validation(flags: Translation) -> None:
    enabled = flags.pop("validates")
    if enabled is not None:
        flags.set_option("validation_mode", "after" if enabled.value else "none", enabled)


def _combine_profile(flags: Translation) -> None:
    level = flags.pop("profile_level")
    if level is not None and "profile" in flags.settings:
        flags.add_dropped(level.source, "--profile sets this")
    elif level is not None:
        flags.set_option("profile", level.value != "NO_PROFILE", level)


def _combine_dataset_benchmark(flags: Translation) -> None:
    """Select another verb, which only a command line can do."""
    requested = _pop_if_true(flags, "dataset_benchmark")
    if requested is None:
        return
    if not requested.source.startswith("--"):
        raise OptionTypeError("--dataset-benchmark belongs on the command line, not in a file")
    flags.add_note(requested, DATA_BENCH_NOTE)


COMBINERS: tuple[Combiner, ...] = (
    _combine_data,
    _combine_model,
    _combine_norm_type,
    _combine_batch_size,
    _combine_length,
    _combine_learning_rate,
    _combine_lr_schedule,
    _combine_optimizer,
    _combine_label_smoothing,
    _combine_mixing,
    _combine_preprocessing,
    _combine_workers,
    _combine_pipeline,
    _combine_memory_proportions,
    _combine_weight_averages,
    _combine_validation,
    _combine_profile,
    _combine_dataset_benchmark,
)


def shards_become_replicas(flags: Translation) -> None:
    """Turn stages into replicas: without a pipeline, each device validates a full replica."""
    shards = flags.get("shards", 1)
    source = flags.settings.get("shards") or flags.base.get("shards")
    if shards > 1 and source is not None:
        if "replicas" not in flags.set_by_launcher:
            replicas = flags.settings.get("replicas")
            flags.set_option("replicas", flags.get("replicas", 1) * shards, source, replicas)
        flags.set_option("shards", 1, source)
    names = ["pipeline", "pipeline_splits", "pipeline_schedule"]
    _drop_all(flags, names, "validation has no pipeline")
    if "pipeline_splits" in flags.base:
        flags.set_option("pipeline_splits", (), flags.base["pipeline_splits"])
    # There may be one proportion per stage; only the first one applies.
    explicit, base = (
        flags.settings.get("proportions"),
        flags.base.get("available_memory_proportion"),
    )
    if explicit is not None:
        flags.settings["proportions"] = Setting(explicit.value[:1], explicit.source)
    elif base is not None and len(base.value) > 1:
        flags.set_option("available_memory_proportion", base.value[:1], base)
