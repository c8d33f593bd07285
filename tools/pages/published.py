"""Published parameter counts, with the options that reproduce the published model."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Published:
    """A model, the options that reproduce it, and its published parameter count."""

    model: str
    options: tuple[tuple[str, Any], ...]
    parameters: int
    source: str


TENSORFLOW, PYTORCH, POPART = (
    f"{name} application" for name in ("TensorFlow", "PyTorch", "PopART")
)
TORCHVISION, TIMM = "torchvision", "timm"
BOTH = "torchvision, timm"
_V1 = (("resnet_version", "v1"), ("shortcut_type", "B"), ("input_image_padding", True))
_SMALL = (*_V1, ("stem", "small"), ("num_classes", 10))
_LARGE = (*_V1, ("stem", "large"), ("num_classes", 1000))
_GROUPS = (("group_dim", 16), ("expand_ratio", 4))

PUBLISHED = (
    Published("resnet10", (("shortcut_type", "first"),), 5_423_016, TENSORFLOW),
    Published("resnet18", (("shortcut_type", "first"),), 11_693_736, TENSORFLOW),
    Published("resnet34", (("shortcut_type", "first"),), 21_801_896, TENSORFLOW),
    Published("resnet18", (), 11_689_512, TORCHVISION),
    Published("resnet34", (), 21_797_672, TORCHVISION),
    Published("resnet50", (), 25_557_032, TORCHVISION),
    Published("resnet101", (), 44_549_160, TORCHVISION),
    Published("resnet152", (), 60_192_808, TORCHVISION),
    Published("resnet14-large", (), 10_064_936, TENSORFLOW),
    Published("resnet26", (), 15_995_176, TENSORFLOW),
    Published("resnet8", (), 75_290, TENSORFLOW),
    Published("resnet14", (), 172_506, TENSORFLOW),
    Published("resnet20", (), 269_722, TENSORFLOW),
    Published("resnet32", (), 464_154, TENSORFLOW),
    Published("resnet44", (), 658_586, TENSORFLOW),
    Published("resnet56", (), 853_018, TENSORFLOW),
    Published("resnet110", (), 1_727_962, TENSORFLOW),
    Published("resnet20", (("num_classes", 100),), 275_572, TENSORFLOW),
    Published("resnet11", (), 127_642, TENSORFLOW),
    Published("resnet29", (), 313_114, TENSORFLOW),
    Published("resnet38", (), 405_850, TENSORFLOW),
    Published("resnet47", (), 498_586, TENSORFLOW),
    Published("resnet56-bottleneck", (), 591_322, TENSORFLOW),
    Published("resnet65", (), 684_058, TENSORFLOW),
    Published("resnet29", (("num_classes", 100),), 336_244, TENSORFLOW),
    Published("resnet8", _SMALL, 78_186, POPART),
    Published("resnet8", _LARGE, 145_096, POPART),
    Published("resnet14", _SMALL, 175_402, POPART),
    Published("resnet14", _LARGE, 242_312, POPART),
    Published("resnet20", _SMALL, 272_618, POPART),
    Published("resnet20", _LARGE, 339_528, POPART),
    Published("resnet32", _SMALL, 467_050, POPART),
    Published("resnet32", _LARGE, 533_960, POPART),
    Published("resnet44", _SMALL, 661_482, POPART),
    Published("resnet44", _LARGE, 728_392, POPART),
    Published("resnet56", _SMALL, 855_914, POPART),
    Published("resnet56", _LARGE, 922_824, POPART),
    Published("resnet110", _SMALL, 1_730_858, POPART),
    Published("resnet110", _LARGE, 1_797_768, POPART),
    Published("resnet18", _SMALL, 11_174_538, POPART),
    Published("resnet18", _LARGE, 11_692_648, POPART),
    Published("resnet34", _SMALL, 21_282_698, POPART),
    Published("resnet34", _LARGE, 21_800_808, POPART),
    Published("resnet50", _SMALL, 23_521_418, POPART),
    Published("resnet50", _LARGE, 25_560_168, POPART),
    Published("resnet101", _SMALL, 42_513_546, POPART),
    Published("resnet101", _LARGE, 44_552_296, POPART),
    Published("resnet152", _SMALL, 58_157_194, POPART),
    Published("resnet152", _LARGE, 60_195_944, POPART),
    Published("resnext50", _SMALL, 22_993_290, POPART),
    Published("resnext50", _LARGE, 25_032_040, POPART),
    Published("resnext14", (), 9_411_880, TENSORFLOW),
    Published("resnext26", (), 15_389_480, TENSORFLOW),
    Published("resnext101", (), 44_177_704, TENSORFLOW),
    Published("resnext152", (), 59_951_400, TENSORFLOW),
    Published("resnext50", (), 25_028_904, TORCHVISION),
    Published("resnext101", (("group_dim", 8),), 88_791_336, TORCHVISION),
    Published("resnext14", (("input_image_padding", True),), 9_415_016, TENSORFLOW),
    Published("resnext11", (), 403_162, TENSORFLOW),
    Published("resnext11", (("widenet", True),), 1_815_370, TENSORFLOW),
    Published("resnext29", (), 1_293_786, TENSORFLOW),
    Published("resnext29", (("widenet", True),), 4_775_754, TENSORFLOW),
    Published("resnext38", (), 1_739_098, TENSORFLOW),
    Published("resnext38", (("widenet", True),), 6_255_946, TENSORFLOW),
    Published("resnext47", (), 2_184_410, TENSORFLOW),
    Published("resnext47", (("widenet", True),), 7_736_138, TENSORFLOW),
    Published("resnext56", (), 2_629_722, TENSORFLOW),
    Published("resnext56", (("widenet", True),), 9_216_330, TENSORFLOW),
    Published("resnext65", (), 3_075_034, TENSORFLOW),
    Published("resnext65", (("widenet", True),), 10_696_522, TENSORFLOW),
    Published("efficientnet-cifar", (), 1_077_932, TENSORFLOW),
    Published("efficientnet-cifar", _GROUPS, 1_683_420, TENSORFLOW),
    Published("efficientnet-b0", (), 5_288_548, BOTH),
    Published("efficientnet-b0", _GROUPS, 5_913_796, TENSORFLOW),
    Published("efficientnet-b1", (), 7_794_184, BOTH),
    Published("efficientnet-b1", _GROUPS, 8_332_120, TENSORFLOW),
    Published("efficientnet-b2", (), 9_109_994, BOTH),
    Published("efficientnet-b2", _GROUPS, 9_504_122, TENSORFLOW),
    Published("efficientnet-b3", (), 12_233_232, BOTH),
    Published("efficientnet-b3", _GROUPS, 12_590_896, TENSORFLOW),
    Published("efficientnet-b4", (), 19_341_616, BOTH),
    Published("efficientnet-b4", _GROUPS, 19_328_168, TENSORFLOW),
    Published("efficientnet-b5", (), 30_389_784, BOTH),
    Published("efficientnet-b5", _GROUPS, 28_715_320, TENSORFLOW),
    Published("efficientnet-b6", (), 43_040_704, BOTH),
    Published("efficientnet-b7", (), 66_347_960, BOTH),
    Published("efficientnet-b7", _GROUPS, 59_210_264, TENSORFLOW),
    Published("efficientnet-b0", (("input_image_padding", True),), 5_288_836, TENSORFLOW),
    Published("mobilenet", (), 3_504_872, BOTH),
    Published("mobilenet-v3-large", (), 5_481_752, PYTORCH),
    Published("mobilenet-v3-small", (), 2_945_288, PYTORCH),
    Published("mobilenet-v3-large", (("num_classes", 10),), 4_213_562, PYTORCH),
    Published("mobilenet-v3-small", (("num_classes", 10),), 1_677_098, PYTORCH),
    Published("mobilenet-v3-large-published", (), 5_483_032, BOTH),
    Published("mobilenet-v3-small-published", (), 2_542_856, BOTH),
    Published("squeezenet", (), 1_244_448, TENSORFLOW),
)
