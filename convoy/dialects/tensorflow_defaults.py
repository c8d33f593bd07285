"""Defaults of the TensorFlow program; many depend on network, data and optimizer."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convoy.config.option import OptionTypeError
from convoy.config.sections.data import DATA
from convoy.config.sections.network import MODELS

DATASETS = {"imagenet": "imagenet", "cifar-10": "cifar10", "cifar-100": "cifar100"}
_DATASET_SUBFOLDERS = {
    "imagenet-data": "imagenet",
    "cifar-100-binary": "cifar100",
    "cifar-10-batches-bin": "cifar10",
}
_FOLDER_NAME_PATTERNS = {"imagenet": "imagenet", r"cifar[-_]?100": "cifar100", "cifar": "cifar10"}
_DATASET_ALIASES = {"cifar10": "cifar10", "cifar100": "cifar100", **DATASETS}
FAMILIES = ("resnet", "resnext", "efficientnet", "squeezenet")
_IMAGENET, _CIFAR = "ImageNet", "CIFAR"

# Sizes whose networks for ImageNet and CIFAR differ, so convoy names one of them differently.
_SPECIAL_NAMES = {
    ("resnet", "14", _IMAGENET): "resnet14-large",
    ("resnet", "56", _CIFAR): "resnet56-bottleneck",
}
_SIZES = {
    ("resnet", _IMAGENET): ("10", "14", "18", "26", "34", "50", "101", "152"),
    ("resnet", _CIFAR): ("8", "14", "20", "32", "44", "110", "11", "29", "38", "47", "56", "65"),
    ("resnext", _IMAGENET): ("14", "26", "50", "101", "152"),
    ("resnext", _CIFAR): ("11", "29", "38", "47", "56", "65"),
}
_DEFAULT_SIZES = {"resnet": ("18", "20"), "resnext": ("14", "11"), "efficientnet": ("B0", "CIFAR")}


def parse_dataset(word: str) -> str:
    """Parse a dataset: `cifar-10` → `cifar10`."""
    if word not in _DATASET_ALIASES:
        raise OptionTypeError(f"--dataset must be one of {', '.join(DATASETS)}, got {word!r}")
    return _DATASET_ALIASES[word]


def guess_dataset(folder: str) -> str | None:
    """Guess the dataset from the name of a folder or of its subfolders."""
    name = folder.lower()
    for pattern, data in _FOLDER_NAME_PATTERNS.items():
        if re.search(pattern, name):
            return data
    subfolders = _DATASET_SUBFOLDERS.items()
    return next((data for name, data in subfolders if (Path(folder) / name).is_dir()), None)


def is_cifar(values: Mapping[str, Any]) -> bool:
    """Whether the data is CIFAR, or generated with its classes."""
    data = values.get("data") or "imagenet"
    if data in ("generated", "synthetic"):
        return values.get("num_classes") in (10, 100)
    return data in DATA and DATA[data].image_size == 32


def model_family(model: str) -> str:
    """Return the family of a canonical name; resnet if it is unknown."""
    return MODELS[model].family if model in MODELS else "resnet"


def model_size(model: str) -> str:
    """Return the size in a canonical name: `resnet50` → `50`, `efficientnet-b4` → `B4`."""
    if model_family(model) == "efficientnet":
        return model.removeprefix("efficientnet-").upper()
    match = re.search(r"\d+", model)
    return match.group() if match else ""


def default_model_size(family: str, small: bool) -> str:
    return _DEFAULT_SIZES.get(family, ("", ""))[small]


def model_name(family: str, size: str, small: bool) -> str:
    """Return the canonical name of a family in a size, for ImageNet or for CIFAR."""
    if family not in FAMILIES:
        raise OptionTypeError(f"--model must be one of {', '.join(FAMILIES)}, got {family!r}")
    if family == "squeezenet":
        return family
    if family == "efficientnet":
        return _efficientnet_name(size.upper())
    data = _CIFAR if small else _IMAGENET
    if size not in _SIZES[family, data]:
        sizes = ", ".join(sorted(_SIZES[family, data], key=int))
        raise OptionTypeError(
            f"--model-size {size!r} is not a {family} for {data}; the sizes are {sizes}"
        )
    return _SPECIAL_NAMES.get((family, size, data), f"{family}{size}")


def _efficientnet_name(size: str) -> str:
    size = f"B{size}" if size.isdigit() else size
    if size != "CIFAR" and not re.fullmatch("B[0-7]", size):
        raise OptionTypeError(f"--model-size of efficientnet is B0 to B7 or cifar, got {size!r}")
    return f"efficientnet-{size.lower()}"


Values = Mapping[str, Any]

# (ImageNet, CIFAR)
_MICRO_BATCH_SIZES = {
    "resnet": (4, 32),
    "resnext": (1, 8),
    "efficientnet": (4, 8),
    "squeezenet": (2, 128),
}
_EPOCHS = {"efficientnet": (350.0, 300.0)}
_LR_EXPONENTS = {
    "resnet": {"sgd": -8.0, "momentum": -11.0},
    "efficientnet": {"sgd": -7.0, "momentum": -10.0, "rmsprop_tf": -14.0},
}
_BASIC_BLOCK_MODELS = ("resnet10", "resnet18", "resnet34")  # a projection starts each group
_LR_DROPS = ((0.3, 0.6, 0.8, 0.9), (0.5, 0.75))


def tensorflow_defaults(chosen: Values) -> Values:
    """Return the defaults that go with the chosen options."""
    small = is_cifar(chosen)
    model = chosen.get("model") or model_name("resnet", default_model_size("resnet", small), small)
    values = {**chosen, "model": model}
    family = model_family(model)
    encoded = chosen.get("data", "imagenet") == "imagenet"
    return {
        "model": model,
        "data": "imagenet",
        **_network_defaults(values, family, small),
        **_length_defaults(values, family, small),
        **_learning_rate_defaults(values, family, small),
        **_optimizer_defaults(values, family, small),
        "precision": "16.16",
        "loss_scaling": 128.0,
        "enable_stochastic_rounding": (chosen.get("precision") or "16.16") != "32.32",
        "enable_recompute": False,
        # Optimizer state is offloaded in a pipeline.
        "offload_optimizer": (chosen.get("shards") or 1) > 1 or bool(chosen.get("pipeline_splits")),
        "shards": 1,
        "normalization_location": "device",
        "normalize_std": small,  # the option is for ImageNet; CIFAR is always standardized
        # The program always uses the boxes in the records.
        **({"crop_rule": "tensorflow", "use_bbox_info": True} if encoded else {}),
        "log_dir": "logs",
    }


def _network_defaults(values: Values, family: str, small: bool) -> Values:
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
        # On by default for these two families.
        "stable_norm": family in ("resnext", "efficientnet") and not small,
        **({"shortcut_type": "first"} if values["model"] in _BASIC_BLOCK_MODELS else {}),
    }


def _length_defaults(values: Values, family: str, small: bool) -> Values:
    size = _MICRO_BATCH_SIZES.get(family, (4, 4))[small]
    if values.get("updates") is not None:
        return {"micro_batch_size": size, "log_freq": 500}
    epochs = _EPOCHS.get(family, (100.0, 160.0))[small]
    return {"micro_batch_size": size, "epoch": epochs, "logs_per_epoch": 16}


def _learning_rate_defaults(values: Values, family: str, small: bool) -> Values:
    rates: dict[str, Any] = {
        "lr_schedule": "step",
        "warmup_epoch": 5.0,
        "base_learning_rate_exponent": _learning_rate_exponent(values, family, small),
    }
    schedule = values.get("lr_schedule") or "step"
    if schedule == "step":
        rates |= {"lr_decay": 0.1, "lr_share_decay": _LR_DROPS[small]}
    if schedule == "exponential":
        rates |= {"lr_decay": 0.97, "lr_drops": 146}
    return rates


def _learning_rate_exponent(values: Values, family: str, small: bool) -> float:
    """Return N of 2^N × the samples of an update."""
    if small:
        return -10.0 if family == "squeezenet" else -6.0
    optimizer = values.get("optimizer") or "sgd"
    if optimizer == "sgd" and values.get("momentum"):
        optimizer = "momentum"
    table = _LR_EXPONENTS.get(family, _LR_EXPONENTS["resnet"])
    return table.get(optimizer, table["momentum"])


def _optimizer_defaults(values: Values, family: str, small: bool) -> Values:
    efficient = family == "efficientnet"
    decay = 1e-6 if small else 1e-5 if efficient else 1e-4
    optimizer = values.get("optimizer") or "sgd"
    smooth = efficient and not small
    rule: dict[str, Any] = {
        "optimizer": "sgd",
        "momentum": 0.0 if optimizer == "sgd" else 0.9,
        "weight_decay": 0.0 if optimizer == "lars" else decay,
        "weight_decay_spares": "nothing" if small else "norms",
        "optimizer_state_dtype": "weights",
        "label_smoothing": 0.1 if smooth else 0.0,
        **({"label_smoothing_over": "others"} if smooth else {}),
    }
    if optimizer == "lars":
        rule["lars_weight_decay"] = decay
    if optimizer == "rmsprop_tf":
        rule |= {"optimizer_eps": 1e-3, "rmsprop_base_decay_exp": -14.0}
    return rule
