"""Models and data sets as the TensorFlow program names them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convoy.config.catalog import DATA, MODELS
from convoy.config.values import WrongType

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
