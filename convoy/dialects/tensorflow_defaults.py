"""What the TensorFlow program takes for granted: much of it follows network, data and optimizer."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convoy.config.catalog import DATA, MODELS
from convoy.config.option import WrongType

DATASETS = {"imagenet": "imagenet", "cifar-10": "cifar10", "cifar-100": "cifar100"}
_FOLDERS = {
    "imagenet-data": "imagenet",
    "cifar-100-binary": "cifar100",
    "cifar-10-batches-bin": "cifar10",
}
_HINTS = {"imagenet": "imagenet", r"cifar[-_]?100": "cifar100", "cifar": "cifar10"}
_ALIKE = {"cifar10": "cifar10", "cifar100": "cifar100", **DATASETS}
FAMILIES = ("resnet", "resnext", "efficientnet", "squeezenet")
_PHOTOS, _SMALL = "ImageNet", "CIFAR"

# Sizes that mean another network on the other data, and so have a name of their own here.
_NAMED = {
    ("resnet", "14", _PHOTOS): "resnet14-large",
    ("resnet", "56", _SMALL): "resnet56-bottleneck",
}
_SIZES = {
    ("resnet", _PHOTOS): ("10", "14", "18", "26", "34", "50", "101", "152"),
    ("resnet", _SMALL): (
        *("8", "14", "20", "32", "44", "110"),
        *("11", "29", "38", "47", "56", "65"),
    ),
    ("resnext", _PHOTOS): ("14", "26", "50", "101", "152"),
    ("resnext", _SMALL): ("11", "29", "38", "47", "56", "65"),
}
_USUAL = {
    ("resnet", _PHOTOS): "18",
    ("resnet", _SMALL): "20",
    ("resnext", _PHOTOS): "14",
    ("resnext", _SMALL): "11",
}


def data_set(word: str) -> str:
    """`cifar-10` → `cifar10`."""
    if word not in _ALIKE:
        raise WrongType(f"--dataset is one of {', '.join(DATASETS)}, got {word!r}")
    return _ALIKE[word]


def data_set_of_folder(folder: str) -> str | None:
    """What the name of a folder says, or one of its sub-folders."""
    name = folder.lower()
    for hint, data in _HINTS.items():
        if re.search(hint, name):
            return data
    return next((data for one, data in _FOLDERS.items() if (Path(folder) / one).is_dir()), None)


def is_small(values: Mapping[str, Any]) -> bool:
    """Whether the data, or what it is made after, is CIFAR."""
    data = values.get("data") or "imagenet"
    if data in ("generated", "synthetic"):
        return values.get("num_classes") in (10, 100)
    return data in DATA and DATA[data].image_size == 32


def family_of(model: str) -> str:
    """The family of a canonical name; an unknown one counts as the usual."""
    return MODELS[model].family if model in MODELS else "resnet"


def size_of(model: str) -> str:
    """`resnet50` → `50`, `efficientnet-b4` → `B4`."""
    if family_of(model) == "efficientnet":
        return model.removeprefix("efficientnet-").upper()
    found = re.search(r"\d+", model)
    return found.group() if found else ""


def usual_size(family: str, small: bool) -> str:
    if family == "efficientnet":
        return "CIFAR" if small else "B0"
    return _USUAL.get((family, _SMALL if small else _PHOTOS), "")


def model_name(family: str, size: str, small: bool) -> str:
    """The canonical name of a family in a size, for photographs or for CIFAR."""
    if family not in FAMILIES:
        raise WrongType(f"--model is one of {', '.join(FAMILIES)}, got {family!r}")
    if family == "squeezenet":
        return family
    if family == "efficientnet":
        return _efficientnet(size.upper())
    data = _SMALL if small else _PHOTOS
    if size not in _SIZES[family, data]:
        sizes = ", ".join(sorted(_SIZES[family, data], key=int))
        raise WrongType(f"--model-size {size!r} is no {family} for {data}; there are {sizes}")
    return _NAMED.get((family, size, data), f"{family}{size}")


def _efficientnet(size: str) -> str:
    size = f"B{size}" if size.isdigit() else size
    if size != "CIFAR" and not re.fullmatch("B[0-7]", size):
        raise WrongType(f"--model-size of efficientnet is B0 to B7 or cifar, got {size!r}")
    return f"efficientnet-{size.lower()}"


Values = Mapping[str, Any]

# (photographs, CIFAR)
_MICRO = {"resnet": (4, 32), "resnext": (1, 8), "efficientnet": (4, 8), "squeezenet": (2, 128)}
_EPOCHS = {"resnet": (100, 160), "resnext": (100, 160), "efficientnet": (350, 300)}
_EXPONENTS = {
    "resnet": {"sgd": -8.0, "momentum": -11.0},
    "efficientnet": {"sgd": -7.0, "momentum": -10.0, "rmsprop_tf": -14.0},
}
_BASIC = ("resnet10", "resnet18", "resnet34")  # each group begins with a projection there
_DROPS = ((0.3, 0.6, 0.8, 0.9), (0.5, 0.75))
SMOOTHING = 0.1  # of EfficientNet on ImageNet


def tensorflow_defaults(chosen: Values) -> Values:
    """Everything nobody said, for what somebody chose."""
    small = is_small(chosen)
    model = chosen.get("model") or model_name("resnet", usual_size("resnet", small), small)
    values = {**chosen, "model": model}
    family = family_of(model)
    encoded = chosen.get("data", "imagenet") == "imagenet"
    return {
        "model": model,
        "data": "imagenet",
        **_network(values, family, small),
        **_lengths(values, family, small),
        **_rates(values, family, small),
        **_update_rule(values, family, small),
        "precision": "16.16",
        "loss_scaling": 128.0,
        "enable_stochastic_rounding": (chosen.get("precision") or "16.16") != "32.32",
        "enable_recompute": False,
        # State lies off the device in a pipeline.
        "offload_optimizer": (chosen.get("shards") or 1) > 1 or bool(chosen.get("pipeline_splits")),
        "shards": 1,
        "normalization_location": "device",
        "normalize_std": small,  # the option is for ImageNet; CIFAR is always standardized
        # Boxes lie in the records there, and are always looked at.
        **({"crop_rule": "tensorflow", "use_bbox_info": True} if encoded else {}),
        "log_dir": "logs",
    }


def _network(values: Values, family: str, small: bool) -> Values:
    norm = values.get("norm_type") or ("batch" if small and family != "efficientnet" else "group")
    efficient = family == "efficientnet"
    return {
        "norm_type": norm,
        "norm_num_groups": 4 if efficient else 16 if small else 32,
        "norm_eps": 1e-3 if efficient else 1e-5 if norm == "batch" else 1.53e-5,
        "batchnorm_momentum": 0.03,
        "enable_fast_groupnorm": norm == "group",
        "conv_padding": "same",
        "weight_init": "tensorflow",
        # On for these two without being asked.
        "stable_norm": family in ("resnext", "efficientnet") and not small,
        **({"shortcut_type": "first"} if values["model"] in _BASIC else {}),
    }


def _lengths(values: Values, family: str, small: bool) -> Values:
    epochs = float(_EPOCHS.get(family, (100, 160))[small])
    counted_in_updates = values.get("updates") is not None
    report = {"log_freq": 500} if counted_in_updates else {"logs_per_epoch": 16}
    length = {} if counted_in_updates else {"epoch": epochs}
    return {"micro_batch_size": _MICRO[family][small] if family in _MICRO else 4} | length | report


def _rates(values: Values, family: str, small: bool) -> Values:
    rates: dict[str, Any] = {"warmup_epoch": 5.0}
    rates["base_learning_rate_exponent"] = _exponent(values, family, small)
    schedule = values.get("lr_schedule") or "step"
    if schedule == "step":
        rates |= {"lr_decay": 0.1, "lr_share_decay": _DROPS[small]}
    if schedule == "exponential":
        rates |= {"lr_decay": 0.97, "lr_drops": 146}
    return {"lr_schedule": "step", **rates}


def _exponent(values: Values, family: str, small: bool) -> float:
    """Of 2, times the samples of an update."""
    if small:
        return -10.0 if family == "squeezenet" else -6.0
    kind = values.get("optimizer") or "sgd"
    if kind == "sgd" and values.get("momentum"):
        kind = "momentum"
    table = _EXPONENTS.get(family, _EXPONENTS["resnet"])
    return table.get(kind, table["momentum"])


def _update_rule(values: Values, family: str, small: bool) -> Values:
    efficient = family == "efficientnet"
    decay = 1e-6 if small else 1e-5 if efficient else 1e-4
    kind = values.get("optimizer") or "sgd"
    smooth = efficient and not small
    rule: dict[str, Any] = {
        "optimizer": "sgd",
        "momentum": 0.0 if kind == "sgd" else 0.9,
        "weight_decay": 0.0 if kind == "lars" else decay,
        "weight_decay_spares": "nothing" if small else "norms",
        "optimizer_state_dtype": "weights",
        "label_smoothing": SMOOTHING if smooth else 0.0,
        **({"label_smoothing_over": "others"} if smooth else {}),
    }
    if kind == "lars":
        rule["lars_weight_decay"] = decay
    if kind == "rmsprop_tf":
        rule |= {"optimizer_eps": 1e-3, "rmsprop_base_decay_exp": -14.0}
    return rule
