"""Flags of the TensorFlow program that become canonical options only in combination.

Each combiner takes its flags out of the translation and sets the options they make together. The
order matters: later combiners see the options that earlier ones have set.
"""

from typing import Any

from convoy.config.catalog import DATA
from convoy.config.flags import MEASURES_DATA, Combiner, Translation
from convoy.config.option import WrongType
from convoy.config.settings import Setting, values_of
from convoy.dialects.tensorflow_defaults import (
    data_set,
    data_set_of_folder,
    family_of,
    is_small,
    model_name,
    size_of,
    usual_size,
)

_BY_CLASSES: dict[Any, str] = {10: "cifar10", 100: "cifar100"}


def _data(flags: Translation) -> None:
    """Made data has the number and classes of the data set it stands for."""
    named, made = flags.take("dataset"), flags.take("made")
    folder = flags.given.get("data_dir") or flags.under.get("data_dir")
    chosen = data_set(named.value) if named else _unnamed_data(flags, folder)
    if made is None:
        like = named or (None if "data" in flags.under else folder)
        if chosen is not None and like is not None:
            flags.put("data", chosen, like)
        return
    imitated = DATA[chosen or "imagenet"]
    flags.put("data", made.value, made)
    flags.fill("samples", imitated.train, made, named)
    flags.fill("num_classes", imitated.classes, made, named)
    if imitated.image_size is not None:
        flags.fill("image_size", imitated.image_size, made, named)


def _unnamed_data(flags: Translation, folder: Setting | None) -> str | None:
    """The data of a configuration, or what the folder's name tells."""
    under = values_of(flags.under)
    if "data" not in under:
        return data_set_of_folder(folder.value) if folder else None
    if _is_made(flags):
        return _BY_CLASSES.get(under.get("num_classes"), "imagenet")
    name: str | None = under["data"]
    return name


def _is_made(flags: Translation) -> bool:
    return flags.value("data") in ("generated", "synthetic")


def _is_small(flags: Translation) -> bool:
    return is_small(values_of(flags.under) | values_of(flags.given))


def _model(flags: Translation) -> None:
    """Family and size, each from its flag, from the configuration, or as usual."""
    family, size = flags.take("family"), flags.take("size")
    if family is None and size is None:
        return
    before, small = flags.value("model"), _is_small(flags)
    chosen = family.value if family else family_of(before or "")
    if size is not None:
        of_size = str(size.value)
    elif before is not None and family_of(before) == chosen:
        of_size = size_of(before)
    else:
        of_size = usual_size(chosen, small)
    flags.put("model", model_name(chosen, of_size, small), family, size)


def _norm(flags: Translation) -> None:
    """Of both flags, EfficientNet took batch norm and the others group norm."""
    batch, group = _take_if_true(flags, "batch_norm"), _take_if_true(flags, "group_norm")
    if batch or group:
        efficient = family_of(flags.value("model", "")) == "efficientnet"
        is_batch = batch and (efficient or not group)
        flags.put("norm_type", "batch" if is_batch else "group", batch, group)


def _take_if_true(flags: Translation, name: str) -> Setting | None:
    setting = flags.take(name)
    return setting if setting is not None and setting.value else None


def _batch(flags: Translation) -> None:
    old, deep = flags.take("gradients_to_accumulate"), flags.take("pipeline_depth")
    if old and deep:
        raise WrongType("--gradients-to-accumulate and --pipeline-depth say the same; give one")
    if count := old or deep:
        if "gradient_accumulation" in flags.given:
            text = f"{count.source} and --gradient-accumulation-count say the same; give one"
            raise WrongType(text)
        flags.put("gradient_accumulation", count.value, count)
    if size := flags.take("batch_size"):
        if "micro_batch_size" in flags.given:
            raise WrongType("--batch-size and --micro-batch-size say the same; give one")
        flags.put("micro_batch_size", size.value, size)


def _length(flags: Translation) -> None:
    """A length in updates takes over; reports then have an interval of their own."""
    if "updates" in flags.given and (epochs := flags.take("epoch")) is not None:
        flags.drop(epochs.source, "--iterations sets the length")
    in_updates = "epoch" not in flags.given and flags.value("updates") is not None
    idle, used = ("logs_per_epoch", "log-freq") if in_updates else ("log_freq", "logs-per-epoch")
    _drop_all(flags, [idle], f"--{used} counts for this kind of length")


def _drop_all(flags: Translation, names: list[str], reason: str) -> None:
    for name in names:
        if (setting := flags.take(name)) is not None:
            flags.drop(setting.source, reason)


def _rate(flags: Translation) -> None:
    """2^N × samples per update; an absolute rate wins, and an exponent of 0 counts as unsaid."""
    if "abs_end_learning_rate" in flags.given and "poly_lr_end_ratio" in flags.given:
        ratio = flags.given.pop("poly_lr_end_ratio")
        flags.drop(f"--poly-lr-end-ratio {ratio.value:g}", "--abs-end-learning-rate wins")
    exponent = flags.take("exponent")
    if exponent is None:
        return
    if exponent.value == 0:
        flags.drop(exponent.source, "an exponent of 0 counts as unsaid")
    elif "lr" in flags.given:
        flags.drop(exponent.source, "--abs-learning-rate wins")
    else:
        flags.put("base_learning_rate_exponent", exponent.value, exponent)


# What a schedule must not take over from another one's configuration.
_OF_SCHEDULE: dict[str, dict[str, Any]] = {
    "step": {"lr_decay": 0.1, "lr_drops": None},
    "exponential": {"lr_decay": 0.97, "lr_drops": 146},
}


def _schedule(flags: Translation) -> None:
    """Each schedule has a decay of its own; here there is one."""
    decays = {"step": flags.take("step_decay"), "exponential": flags.take("exponential_decay")}
    _drop_all(flags, ["decay_steps"], "polynomial ends with the run")
    chosen = flags.value("lr_schedule", "step")
    for schedule, decay in decays.items():
        if decay is not None and schedule == chosen:
            flags.put("lr_decay", decay.value, decay)
        elif decay is not None:
            flags.drop(decay.source, f"the schedule is {chosen}")
    if chosen != "exponential":
        _drop_all(flags, ["lr_drops"], f"the schedule is {chosen}")
    typed, before = flags.given.get("lr_schedule"), flags.under.get("lr_schedule")
    if typed is not None and before is not None and before.value != chosen:
        for name, value in _OF_SCHEDULE.get(chosen, {"lr_drops": None}).items():
            flags.fill(name, value, typed)


_OPTIMIZERS = {"sgd": "sgd", "momentum": "sgd_combined", "rmsprop": "rmsprop_tf", "lars": "lars"}


def _optimizer(flags: Translation) -> None:
    """Plain SGD has no momentum; what was called momentum is SGD with one, in scaled units."""
    rule, momentum = flags.take("optimiser"), flags.take("optimiser_momentum")
    if rule is None:
        plain = flags.value("optimizer", "sgd") == "sgd" and not flags.value("momentum")
        if momentum is not None and not plain:
            flags.put("momentum", momentum.value, momentum)
    else:
        plain = rule.value == "sgd"
        usual = flags.value("momentum") or 0.9  # of the configuration, if that has any
        chosen = momentum.value if momentum else usual
        flags.put("optimizer", _OPTIMIZERS[rule.value], rule)
        flags.put("momentum", 0.0 if plain else chosen, rule if plain else momentum or rule)
    if momentum is not None and plain:
        flags.drop(momentum.source, "plain SGD has none")


def _smoothing(flags: Translation) -> None:
    """There ε goes to the other classes alone."""
    epsilon = flags.take("smoothing")
    if epsilon is not None:
        flags.put("label_smoothing", epsilon.value, epsilon)
        if epsilon.value:
            flags.put("label_smoothing_over", "others", epsilon)


def _mixing(flags: Translation) -> None:
    """One bound where there are two here. Made data is not mixed."""
    if _is_made(flags):
        _without_mixing(flags)
        return
    bound = flags.take("cutmix_lambda")
    if bound is None:
        return
    if bound.value == 0:
        raise WrongType(f"{bound.source} must be above 0, the share of an image that stays")
    share = 0.0 if bound.value == 1 else bound.value
    flags.put("cutmix_lambda_low", share, bound)
    flags.put("cutmix_lambda_high", share, bound)
    if share and flags.value("cutmix_version") is None:
        flags.put("cutmix_version", 1, bound)


def _without_mixing(flags: Translation) -> None:
    """Flags of mixing are dropped, and what a configuration says of it is undone."""
    data = flags.given.get("data") or flags.under["data"]
    names = ["mixup_alpha", "cutmix_lambda", "cutmix_version"]
    _drop_all(flags, names, "made data is not mixed")
    for name in ("mixup_alpha", "cutmix_lambda_low", "cutmix_lambda_high"):
        if flags.value(name):
            flags.put(name, 0.0, data)


def _preprocessing(flags: Translation) -> None:
    """One operation there: normalize on the device, and add a fourth channel."""
    fused = _take_if_true(flags, "fused")
    if fused is None:
        return
    if _is_small(flags):
        flags.drop(fused.source, "it is for ImageNet")
        return
    where = flags.given.get("normalization_location")
    if where is not None and where.value == "host":
        flags.drop(where.source, "--fused-preprocessing normalizes on the device")
    flags.put("normalization_location", "device", fused)
    flags.put("input_image_padding", True, fused)


def _workers(flags: Translation) -> None:
    """The workers of TF_CONFIG are instances, and `--replicas` are those of each."""
    distributed = flags.take("distributed")
    if distributed is not None and "instances" in flags.given:
        flags.note(distributed, "its workers are instances")
    elif distributed is not None:
        flags.drop("--distributed", "there is no TF_CONFIG with other workers")


def _pipeline(flags: Translation) -> None:
    """Stages need `--pipeline`. On one device they take turns, and mark what to recompute."""
    asked = flags.take("pipeline")
    splits, shards = flags.value("pipeline_splits", ()), flags.value("shards", 1)
    under = values_of(flags.under)
    was = (under.get("shards") or 1) > 1 or under.get("pipeline_splits")
    if not was and not (asked and asked.value):
        if shards > 1:
            raise WrongType(f"--shards {shards} needs --pipeline")
        if len(splits) > 1:
            raise WrongType(f"--pipeline-splits {' '.join(splits)} needs --pipeline")
    like = flags.given.get("shards") or asked or flags.given.get("pipeline_splits")
    if asked is not None and shards <= 1 and not splits:
        flags.drop(asked.source, "there is one stage")
    elif asked is not None:
        flags.note(asked, f"its stages {'work at the same time' if shards > 1 else 'take turns'}")
    if shards == 1 and splits and like is not None:
        order = flags.given.get("pipeline_schedule")
        if order is not None and order.value != "sequential":
            flags.drop(order.source, "stages on one device take turns")
        flags.put("shards", 1, like)
        flags.put("pipeline_schedule", "sequential", like)


def _proportions(flags: Translation) -> None:
    """One for all, or two a stage: of convolutions, which is the one that counts here, and
    of products."""
    found = flags.take("proportions")
    if found is None:
        return
    shards, given = flags.value("shards", 1), len(found.value)
    if given not in (1, 2 * shards):
        raise WrongType(
            f"--available-memory-proportion takes 1 value, or 2 for each of {shards} "
            f"shards ({2 * shards}), got {given}"
        )
    flags.put("available_memory_proportion", found.value[::2], found)


def _averages(flags: Translation) -> None:
    """There N are epochs back from the end; here the checkpoints from then on, both ends too."""
    mean, decay = flags.take("mean_of"), flags.take("average_decay")
    discard = flags.take("discard_last")
    if discard is not None and discard.value:
        raise WrongType("--discard-last is not available in this version; leave it out")
    if discard is not None:
        flags.note(discard, "no checkpoint is left out")
    decays: tuple[float, ...] = decay.value if decay else ()
    means: tuple[int, ...] = mean.value if mean else ()
    if decay is not None:
        flags.put("weight_avg_strategy", "exponential", decay)
        flags.put("weight_avg_exp_decay", decays[0], decay)
        decays = decays[1:]
    elif mean is not None:
        flags.put("weight_avg_strategy", "mean", mean)
        every, per_epoch = flags.value("epochs_per_ckpt", 0), flags.value("ckpts_per_epoch", 1)
        back = means[0] // every if every else means[0] * per_epoch
        flags.put("weight_avg_n", back + 1, mean)
        means = means[1:]
    reason = "a run makes one average; `convoy average` makes others of its checkpoints"
    for spelling, rest in (("--weight-avg-exp", decays), ("--weight-avg-N", means)):
        if rest:
            flags.drop(" ".join([spelling, *map(str, rest)]), reason)


def _validation(flags: Translation) -> None:
    on = flags.take("validates")
    if on is not None:
        flags.put("validation_mode", "after" if on.value else "none", on)


def _profile(flags: Translation) -> None:
    level = flags.take("profile_level")
    if level is not None and "profile" in flags.given:
        flags.drop(level.source, "--profile says it")
    elif level is not None:
        flags.put("profile", level.value != "NO_PROFILE", level)


def _benchmark(flags: Translation) -> None:
    """Another verb comes of it, which only a command line can choose."""
    asked = _take_if_true(flags, "dataset_benchmark")
    if asked is None:
        return
    if not asked.source.startswith("--"):
        raise WrongType("--dataset-benchmark belongs on the command line, not into a file")
    flags.note(asked, MEASURES_DATA)


COMBINERS: tuple[Combiner, ...] = (
    _data,
    _model,
    _norm,
    _batch,
    _length,
    _rate,
    _schedule,
    _optimizer,
    _smoothing,
    _mixing,
    _preprocessing,
    _workers,
    _pipeline,
    _proportions,
    _averages,
    _validation,
    _profile,
    _benchmark,
)


def shards_become_replicas(flags: Translation) -> None:
    """Validation runs no pipeline: each device holds a whole copy."""
    shards = flags.value("shards", 1)
    like = flags.given.get("shards") or flags.under.get("shards")
    if shards > 1 and like is not None:
        if "replicas" not in flags.launched:
            each = flags.given.get("replicas")
            flags.put("replicas", flags.value("replicas", 1) * shards, like, each)
        flags.put("shards", 1, like)
    names = ["pipeline", "pipeline_splits", "pipeline_schedule"]
    _drop_all(flags, names, "validation runs no pipeline")
    if "pipeline_splits" in flags.under:
        flags.put("pipeline_splits", (), flags.under["pipeline_splits"])
    # Of many proportions that were meant for stages, the first.
    typed, under = flags.given.get("proportions"), flags.under.get("available_memory_proportion")
    if typed is not None:
        flags.given["proportions"] = Setting(typed.value[:1], typed.source)
    elif under is not None and len(under.value) > 1:
        flags.put("available_memory_proportion", under.value[:1], under)
