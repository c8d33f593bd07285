"""Model and data set names, and what each one brings with it. Plain data."""

from dataclasses import dataclass, field
from typing import Any

from convoy.registry import Registry


@dataclass(frozen=True)
class ModelEntry:
    """A network by name."""

    family: str
    depth: int  # as the family counts: layers, blocks, or the number in its name
    image_size: int
    groups: int  # of a group norm
    bottleneck: bool = False  # blocks of three convolutions, narrow in the middle

    @property
    def small(self) -> bool:
        """Whether it is made for 32 × 32 images."""
        return self.image_size == 32

    @property
    def classes(self) -> int:
        return 10 if self.small else 1000

    @property
    def defaults(self) -> dict[str, Any]:
        return {"norm_num_groups": self.groups}


@dataclass(frozen=True)
class DataEntry:
    """A data set by name. A size or count of None is the user's choice."""

    classes: int | None
    image_size: int | None
    train: int | None
    validation: int | None
    on_disk: bool = False
    fixed_size: bool = False
    any_classes: bool = False  # its files decide how many; the number here is the usual one
    defaults: dict[str, Any] = field(default_factory=dict)


def _small(depth: int, family: str = "resnet", bottleneck: bool = False) -> ModelEntry:
    return ModelEntry(family, depth, 32, 16, bottleneck)


def _large(depth: int, family: str = "resnet", bottleneck: bool = False) -> ModelEntry:
    return ModelEntry(family, depth, 224, 32, bottleneck)


def _gated(family: str, depth: int, image_size: int) -> ModelEntry:
    """Widths that are multiples of 8 and of nothing else, so few groups of a group norm."""
    return ModelEntry(family, depth, image_size, 4)


# A depth that two networks have goes to the basic one for little images.
_RESNETS = {
    **{f"resnet{depth}": _small(depth) for depth in (8, 14, 20, 32, 44, 56, 110)},
    **{f"resnet{depth}": _small(depth, bottleneck=True) for depth in (11, 29, 38, 47, 65)},
    "resnet56-bottleneck": _small(56, bottleneck=True),
    **{f"resnet{depth}": _large(depth) for depth in (10, 18, 34)},
    "resnet14-large": _large(14, bottleneck=True),
    **{f"resnet{depth}": _large(depth, bottleneck=True) for depth in (26, 50, 101, 152)},
}
_RESNEXTS = {
    **{f"resnext{depth}": _small(depth, "resnext", True) for depth in (11, 29, 38, 47, 56, 65)},
    **{f"resnext{depth}": _large(depth, "resnext", True) for depth in (14, 26, 50, 101, 152)},
}
_EFFICIENTNET_IMAGES = (224, 240, 260, 300, 380, 456, 528, 600)  # B0 … B7
_EFFICIENTNETS = {
    "efficientnet-cifar": _gated("efficientnet", 0, 32),
    **{
        f"efficientnet-b{number}": _gated("efficientnet", number, image_size)
        for number, image_size in enumerate(_EFFICIENTNET_IMAGES)
    },
}
_MOBILENETS = {
    "mobilenet": _gated("mobilenet", 17, 224),
    "mobilenet-v3-small": _gated("mobilenet", 11, 224),
    "mobilenet-v3-large": _gated("mobilenet", 15, 224),
    "mobilenet-v3-small-published": _gated("mobilenet", 11, 224),
    "mobilenet-v3-large-published": _gated("mobilenet", 15, 224),
}
_SQUEEZENETS = {"squeezenet": _large(8, "squeezenet")}

MODELS: Registry[ModelEntry] = Registry(
    "model", _RESNETS | _RESNEXTS | _EFFICIENTNETS | _MOBILENETS | _SQUEEZENETS
)

# About 99 % after half a minute on two cores: docs/benchmarks.md.
_SHAPES_RECIPE = {"epoch": 3.0, "warmup_epoch": 1.0}
_CIFAR_RECIPE = {"epoch": 20.0, "warmup_epoch": 1.0, "micro_batch_size": 128}

AUGMENTED = ("cifar10", "cifar100", "imagenet")  # data sets that have crops and flips
ENCODED = "imagenet"  # the one whose samples are files of images

DATA: Registry[DataEntry] = Registry(
    "data set",
    {
        "shapes": DataEntry(10, 32, 8_000, 2_000, defaults=_SHAPES_RECIPE),
        "cifar10": DataEntry(10, 32, 50_000, 10_000, True, True, defaults=_CIFAR_RECIPE),
        "cifar100": DataEntry(100, 32, 50_000, 10_000, True, True, defaults=_CIFAR_RECIPE),
        "imagenet": DataEntry(1000, None, 1_281_167, 50_000, True, any_classes=True),
        "generated": DataEntry(None, None, 2_048, 512),
        "synthetic": DataEntry(None, None, 2_048, 512),
    },
)
