"""Model and data set names, and what each one brings with it. Plain data."""

from dataclasses import dataclass, field
from typing import Any

from convoy.registry import Registry


@dataclass(frozen=True)
class ModelEntry:
    """A network by name. `small` ones are made for 32 × 32 images."""

    family: str
    depth: int
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


def _small(depth: int) -> ModelEntry:
    return ModelEntry("resnet", depth, True, 32, 10, {"norm_num_groups": 16})


def _large(depth: int) -> ModelEntry:
    return ModelEntry("resnet", depth, False, 224, 1000, {"norm_num_groups": 32})


MODELS: Registry[ModelEntry] = Registry(
    "model",
    {f"resnet{depth}": _small(depth) for depth in (8, 14, 20, 32, 44, 56, 110)}
    | {f"resnet{depth}": _large(depth) for depth in (18, 34, 50, 101, 152)},
)

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
