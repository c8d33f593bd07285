"""Layers of ours → timm's names.

ResNet, ResNeXt, EfficientNet and MobileNet v3 have these names already. MobileNet v2 bears
torchvision's, which counts blocks through; timm counts them within stages of one width.
"""

import re
from collections.abc import Iterator, Sequence

_STAGES = (1, 2, 3, 4, 3, 3, 1)  # blocks of one width in MobileNet v2
_BLOCK = re.compile(r"features\.(\d+)\.conv\.(.+)")
_NARROW = {"0.0": "conv_dw", "0.1": "bn1", "1": "conv_pw", "2": "bn2"}  # without expansion
_WIDE = {
    "0.0": "conv_pw",
    "0.1": "bn1",
    "1.0": "conv_dw",
    "1.1": "bn2",
    "2": "conv_pwl",
    "3": "bn3",
}
_ENDS = {
    "features.0.0": "conv_stem",
    "features.0.1": "bn1",
    "features.18.0": "conv_head",
    "features.18.1": "bn2",
    "classifier.1": "classifier",
}


def timm_layers(layers: Sequence[str]) -> dict[str, str] | None:
    """Their name of each layer; None for a network that timm does not have."""
    if any(layer.startswith("fire") for layer in layers):
        return None
    if layers[0] != "features.0.0":
        return {layer: layer for layer in layers}
    return {layer: _ENDS.get(layer) or _in_block(layer) for layer in layers}


def _in_block(layer: str) -> str:
    found = _BLOCK.fullmatch(layer)
    assert found, f"{layer} is no layer of MobileNet v2"
    number, part = int(found[1]), found[2]
    stage, index = list(_places())[number - 1]
    return f"blocks.{stage}.{index}.{(_NARROW if number == 1 else _WIDE)[part]}"


def _places() -> Iterator[tuple[int, int]]:
    """Stage and index of each block, in order."""
    return ((stage, index) for stage, count in enumerate(_STAGES) for index in range(count))
