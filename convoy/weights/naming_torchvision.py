"""Layers of ours → torchvision's names.

ResNet, ResNeXt and MobileNet v2 have these names already. EfficientNet and MobileNet v3 bear
timm's; torchvision counts instead: stages, blocks, and the parts of a block.

    blocks.1.0.conv_pw  bn1        conv_dw  bn2        se.conv_reduce  conv_expand  conv_pwl  bn3
    features.2.0.block.0.0  0.1    1.0      1.1        2.fc1           2.fc2        3.0       3.1
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

_BLOCK = re.compile(r"(blocks\.(\d+)\.(\d+))\.(.+)")
_OWN = ("conv1", "features.0.0")  # first layers of the networks that need no other names


def torchvision_layers(layers: Sequence[str]) -> dict[str, str] | None:
    """Their name of each layer; None for a network that torchvision does not have."""
    if layers[0] in _OWN and not any(layer.startswith("fire") for layer in layers):
        return {layer: layer for layer in layers}
    if layers[0] != "conv_stem":
        return None
    return dict(_counted(layers))


def _counted(layers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The stem, the blocks, and the head, which MobileNet v3 has behind its pooling."""
    ends_in_conv = any(_part(layer) == "conv" for layer in layers)
    yield from (("conv_stem", "features.0.0"), ("bn1", "features.0.1"))
    blocks = groupby((layer for layer in layers if _BLOCK.match(layer)), key=_block)
    place = 0
    for count, (block, parts) in enumerate(blocks, start=1):
        _, stage, index = block.split(".")
        place = count if ends_in_conv else int(stage) + 1
        inside = f"features.{place}" if ends_in_conv else f"features.{place}.{index}"
        yield from _of_block(list(parts), inside)
    if ends_in_conv:
        yield from (("conv_head", "classifier.0"), ("classifier", "classifier.3"))
    else:
        yield from (("conv_head", f"features.{place + 1}.0"), ("bn2", f"features.{place + 1}.1"))
        yield "classifier", "classifier.1"


def _of_block(layers: list[str], place: str) -> Iterator[tuple[str, str]]:
    """A convolution or a squeeze begins the next part; MobileNet v3 ends with a bare one."""
    if _part(layers[0]) == "conv":
        yield from zip(layers, (f"{place}.0", f"{place}.1"), strict=False)
        return
    part = -1
    for layer in layers:
        word = _part(layer)
        begins = word.startswith("conv") or word == "se.conv_reduce"
        part += begins
        ending = {"se.conv_reduce": "fc1", "se.conv_expand": "fc2"}.get(word)
        yield layer, f"{place}.block.{part}.{ending or ('0' if begins else '1')}"


def _block(layer: str) -> str:
    found = _BLOCK.match(layer)
    return found[1] if found else ""


def _part(layer: str) -> str:
    """The name within its block."""
    found = _BLOCK.match(layer)
    return found[4] if found else ""
