"""How the words of the TensorFlow program come together to canonical options."""

from typing import Any

from convoy.config.catalog import DATA
from convoy.config.dialects.speech import Join, Speech
from convoy.config.dialects.tensorflow_models import (
    data_set,
    data_set_of_folder,
    family_of,
    is_small,
    model_name,
    size_of,
    usual_size,
)
from convoy.config.layers import Setting
from convoy.config.values import WrongType

_BY_CLASSES: dict[Any, str] = {10: "cifar10", 100: "cifar100"}


def _data(speech: Speech) -> None:
    """Made data has the number and classes of the data set it stands for."""
    named, made = speech.take("dataset"), speech.take("made")
    folder = speech.said.get("data_dir") or speech.under.get("data_dir")
    chosen = data_set(named.value) if named else _unsaid(speech, folder)
    if made is None:
        like = named or (None if "data" in speech.under else folder)
        if chosen is not None and like is not None:
            speech.put("data", chosen, like)
        return
    shown = DATA[chosen or "imagenet"]
    speech.put("data", made.value, made)
    speech.fill("samples", shown.train, made, named)
    speech.fill("num_classes", shown.classes, made, named)
    if shown.image_size is not None:
        speech.fill("image_size", shown.image_size, made, named)


def _unsaid(speech: Speech, folder: Setting | None) -> str | None:
    """The data of a configuration, or what the folder's name tells."""
    under = _under(speech)
    if "data" in under:
        made_after = _BY_CLASSES.get(under.get("num_classes"), "imagenet")
        return made_after if _is_made(speech) else under["data"]
    return data_set_of_folder(folder.value) if folder else None


def _is_made(speech: Speech) -> bool:
    return speech.value("data") in ("generated", "synthetic")


def _under(speech: Speech) -> dict[str, Any]:
    return {name: one.value for name, one in speech.under.items()}


def _values(speech: Speech) -> dict[str, Any]:
    return _under(speech) | {name: one.value for name, one in speech.said.items()}


def _model(speech: Speech) -> None:
    """Family and size, each from what was said, from the configuration, or as usual."""
    family, size = speech.take("family"), speech.take("size")
    before = speech.value("model")
    if family is None and size is None:
        return
    small = is_small(_values(speech))
    of_family = family.value if family else family_of(before or "")
    if size is not None:
        chosen = str(size.value)
    elif before is not None and family_of(before) == of_family:
        chosen = size_of(before)
    else:
        chosen = usual_size(of_family, small)
    speech.put("model", model_name(of_family, chosen, small), family, size)


def _norm(speech: Speech) -> None:
    """Of both flags, EfficientNet took batch norm and the others group norm."""
    batch, group = speech.take("batch_norm"), speech.take("group_norm")
    batch, group = _if_true(batch), _if_true(group)
    if batch and group:
        efficient = family_of(speech.value("model", "")) == "efficientnet"
        speech.put("norm_type", "batch" if efficient else "group", batch, group)
    elif batch or group:
        speech.put("norm_type", "batch" if batch else "group", batch, group)


def _if_true(one: Setting | None) -> Setting | None:
    return one if one is not None and one.value else None


def _batch(speech: Speech) -> None:
    old, deep = speech.take("gradients_to_accumulate"), speech.take("pipeline_depth")
    if old and deep:
        raise WrongType("--gradients-to-accumulate and --pipeline-depth say the same; give one")
    if (count := old or deep) is not None:
        if "gradient_accumulation" in speech.said:
            text = f"{count.source} and --gradient-accumulation-count say the same; give one"
            raise WrongType(text)
        speech.put("gradient_accumulation", count.value, count)
    size = speech.take("batch_size")
    if size is None:
        return
    if "micro_batch_size" in speech.said:
        raise WrongType("--batch-size and --micro-batch-size say the same; give one")
    speech.put("micro_batch_size", size.value, size)


def _length(speech: Speech) -> None:
    """A length in updates takes over; reports then have a rhythm of their own."""
    if "updates" in speech.said and "epoch" in speech.said:
        speech.drop(speech.said.pop("epoch").source, "--iterations sets the length")
    in_updates = "epoch" not in speech.said and speech.value("updates") is not None
    other, rhythm = ("logs_per_epoch", "log-freq") if in_updates else ("log_freq", "logs-per-epoch")
    if other in speech.said:
        speech.drop(speech.said.pop(other).source, f"--{rhythm} counts for this kind of length")


def _rate(speech: Speech) -> None:
    """2^N × samples per update; an absolute rate wins, and an exponent of 0 counts as unsaid."""
    if "abs_end_learning_rate" in speech.said and "poly_lr_end_ratio" in speech.said:
        ratio = speech.said.pop("poly_lr_end_ratio")
        speech.drop(f"--poly-lr-end-ratio {ratio.value:g}", "--abs-end-learning-rate wins")
    exponent = speech.take("exponent")
    if exponent is None:
        return
    if exponent.value == 0:
        speech.drop(exponent.source, "an exponent of 0 counts as unsaid")
    elif "lr" in speech.said:
        speech.drop(exponent.source, "--abs-learning-rate wins")
    else:
        speech.put("base_learning_rate_exponent", exponent.value, exponent)


def _schedule(speech: Speech) -> None:
    """Each schedule has a decay of its own; here there is one."""
    decays = {"step": speech.take("step_decay"), "exponential": speech.take("exponential_decay")}
    steps = speech.take("decay_steps")
    if steps is not None:
        speech.drop(steps.source, "polynomial ends with the run")
    chosen = speech.value("lr_schedule", "step")
    for schedule, decay in decays.items():
        if decay is None:
            continue
        if schedule == chosen:
            speech.put("lr_decay", decay.value, decay)
        else:
            speech.drop(decay.source, f"the schedule is {chosen}")
    if chosen != "exponential" and (drops := speech.take("lr_drops")) is not None:
        speech.drop(drops.source, f"the schedule is {chosen}")
    typed, before = speech.said.get("lr_schedule"), speech.under.get("lr_schedule")
    if typed is not None and before is not None and before.value != chosen:
        for name, value in _OWN_OF_SCHEDULE.get(chosen, {"lr_drops": None}).items():
            speech.fill(name, value, typed)


# What a schedule must not take over from another one's configuration.
_OWN_OF_SCHEDULE: dict[str, dict[str, Any]] = {
    "step": {"lr_decay": 0.1, "lr_drops": None},
    "exponential": {"lr_decay": 0.97, "lr_drops": 146},
}


def _optimizer(speech: Speech) -> None:
    """Plain SGD has no momentum; what was called momentum is SGD with one, in scaled units."""
    rule, momentum = speech.take("optimiser"), speech.take("optimiser_momentum")
    if rule is None:
        plain = speech.value("optimizer", "sgd") == "sgd" and not speech.value("momentum")
        if momentum is not None and plain:
            speech.drop(momentum.source, "plain SGD has none")
        elif momentum is not None:
            speech.put("momentum", momentum.value, momentum)
        return
    names = {"sgd": "sgd", "momentum": "sgd_combined", "rmsprop": "rmsprop_tf", "lars": "lars"}
    speech.put("optimizer", names[rule.value], rule)
    if rule.value == "sgd":
        speech.put("momentum", 0.0, rule)
        if momentum is not None:
            speech.drop(momentum.source, "plain SGD has none")
    else:
        usual = speech.value("momentum") or 0.9  # of the configuration, if that has any
        speech.put("momentum", momentum.value if momentum else usual, momentum or rule)


def _smoothing(speech: Speech) -> None:
    """There ε goes to the other classes alone."""
    epsilon = speech.take("smoothing")
    if epsilon is None:
        return
    speech.put("label_smoothing", epsilon.value, epsilon)
    if epsilon.value:
        speech.put("label_smoothing_over", "others", epsilon)


def _mixing(speech: Speech) -> None:
    """One bound where there are two here. Made data is not mixed."""
    if _is_made(speech):
        _unmixed(speech)
        return
    bound = speech.take("cutmix_lambda")
    if bound is None:
        return
    if bound.value == 0:
        raise WrongType(f"{bound.source} must be above 0, the share of an image that stays")
    share = 0.0 if bound.value == 1 else bound.value
    speech.put("cutmix_lambda_low", share, bound)
    speech.put("cutmix_lambda_high", share, bound)
    if share and speech.value("cutmix_version") is None:
        speech.put("cutmix_version", 1, bound)


def _unmixed(speech: Speech) -> None:
    """What was said of mixing is left out, and what a configuration says is undone."""
    data = speech.said.get("data") or speech.under["data"]
    for name in ("mixup_alpha", "cutmix_lambda", "cutmix_version"):
        if (said := speech.take(name)) is not None:
            speech.drop(said.source, "made data is not mixed")
    for name in ("mixup_alpha", "cutmix_lambda_low", "cutmix_lambda_high"):
        if speech.value(name):
            speech.put(name, 0.0, data)


def _preprocessing(speech: Speech) -> None:
    """One operation there: normalize on the device, and add a fourth channel."""
    fused = _if_true(speech.take("fused"))
    if fused is None:
        return
    if is_small(_values(speech)):
        speech.drop(fused.source, "it is for ImageNet")
        return
    where = speech.said.get("normalization_location")
    if where is not None and where.value == "host":
        speech.drop(where.source, "--fused-preprocessing normalizes on the device")
    speech.put("normalization_location", "device", fused)
    speech.put("input_image_padding", True, fused)


JOINS: tuple[Join, ...] = (
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
)
