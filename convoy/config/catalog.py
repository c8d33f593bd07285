"""Model and data set names, and what each one brings with it. Plain data."""

from dataclasses import dataclass, field
from typing import Any

from convoy.registry import Registry


@dataclass(frozen=True)
class ModelEntry:
    """A network by name. `small` ones are made for 32 × 32 images."""

    family: str
    depth: int  # as the family counts: layers, blocks, or the number in its name
    small: bool
    image_size: int
    classes: int
    defaults: dict[str, Any] = field(default_factory=dict)
    built: bool = True  # this version can train it


@dataclass(frozen=True)
class DataEntry:
    """A data set by name. A size or count of None is the user's choice."""

    classes: int | None
    image_size: int | None
    train: int | None
    validation: int | None
    on_disk: bool = False
    fixed_size: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)


def _small(depth: int, family: str = "resnet", built: bool = True) -> ModelEntry:
    return ModelEntry(family, depth, True, 32, 10, {"norm_num_groups": 16}, built)


def _large(depth: int, family: str = "resnet", built: bool = True) -> ModelEntry:
    return ModelEntry(family, depth, False, 224, 1000, {"norm_num_groups": 32}, built)


def _efficientnet(depth: int, image_size: int) -> ModelEntry:
    small = image_size == 32
    classes = 10 if small else 1000
    return ModelEntry(
        "efficientnet", depth, small, image_size, classes, {"norm_num_groups": 4}, built=False
    )


_BUILT = {f"resnet{depth}": _small(depth) for depth in (8, 14, 20, 32, 44, 56, 110)} | {
    f"resnet{depth}": _large(depth) for depth in (18, 34, 50, 101, 152)
}

# What configurations may speak of already. A depth that two networks have goes to the built one.
_BOTTLENECKS_SMALL = {
    "resnet11": 11,
    "resnet29": 29,
    "resnet38": 38,
    "resnet47": 47,
    "resnet56-bottleneck": 56,
    "resnet65": 65,
}
_EFFICIENTNET_IMAGES = (224, 240, 260, 300, 380, 456, 528, 600)  # B0 … B7
_PLANNED = {
    "resnet10": _large(10, built=False),
    "resnet26": _large(26, built=False),
    "resnet14-large": _large(14, built=False),
    **{name: _small(depth, built=False) for name, depth in _BOTTLENECKS_SMALL.items()},
    **{f"resnext{depth}": _large(depth, "resnext", False) for depth in (14, 26, 50, 101, 152)},
    **{f"resnext{depth}": _small(depth, "resnext", False) for depth in (11, 29, 38, 47, 56, 65)},
    **{
        f"efficientnet-b{number}": _efficientnet(number, image_size)
        for number, image_size in enumerate(_EFFICIENTNET_IMAGES)
    },
    "efficientnet-cifar": _efficientnet(0, 32),
    "mobilenet": _large(17, "mobilenet", False),
    "mobilenet-v3-small": _large(11, "mobilenet", False),
    "mobilenet-v3-large": _large(15, "mobilenet", False),
    "squeezenet": _large(8, "squeezenet", False),
}

MODELS: Registry[ModelEntry] = Registry("model", _BUILT | _PLANNED)

# About 99 % after half a minute on two cores: docs/benchmarks.md.
_SHAPES_RECIPE = {"epoch": 3.0, "warmup_epoch": 1.0}
_CIFAR_RECIPE = {"epoch": 20.0, "warmup_epoch": 1.0, "micro_batch_size": 128}

DATA: Registry[DataEntry] = Registry(
    "data set",
    {
        "shapes": DataEntry(10, 32, 8_000, 2_000, defaults=_SHAPES_RECIPE),
        "cifar10": DataEntry(10, 32, 50_000, 10_000, True, True, _CIFAR_RECIPE),
        "cifar100": DataEntry(100, 32, 50_000, 10_000, True, True, _CIFAR_RECIPE),
        "imagenet": DataEntry(1000, None, 1_281_167, 50_000, True),
        "generated": DataEntry(None, None, 2_048, 512),
        "synthetic": DataEntry(None, None, 2_048, 512),
    },
)
