"""The names of our tensors in torchvision and timm."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

_STAGES = (1, 2, 3, 4, 3, 3, 1)  # blocks of one width in MobileNet v2
_TIMM_BLOCK = re.compile(r"features\.(\d+)\.conv\.(.+)")
_NARROW = {"0.0": "conv_dw", "0.1": "bn1", "1": "conv_pw", "2": "bn2"}  # without expansion
_WIDE = {
    "0.0": "conv_pw",
    "0.1": "bn1",
    "1.0": "conv_dw",
    "1.1": "bn2",
    "2": "conv_pwl",
    "3": "bn3",
}
_OUTER_LAYERS = {
    "features.0.0": "conv_stem",
    "features.0.1": "bn1",
    "features.18.0": "conv_head",
    "features.18.1": "bn2",
    "classifier.1": "classifier",
}


def timm_layers(layers: Sequence[str]) -> dict[str, str] | None:
    """timm's name of each layer; None for a network that it does not have."""
    if any(layer.startswith("fire") for layer in layers):
        return None
    if layers[0] != "features.0.0":
        return {layer: layer for layer in layers}
    return {layer: _OUTER_LAYERS.get(layer) or _in_block(layer) for layer in layers}


def _in_block(layer: str) -> str:
    found = _TIMM_BLOCK.fullmatch(layer)
    assert found, f"{layer} is not a layer of MobileNet v2"
    number, part = int(found[1]), found[2]
    blocks = [(stage, index) for stage, count in enumerate(_STAGES) for index in range(count)]
    stage, index = blocks[number - 1]
    return f"blocks.{stage}.{index}.{(_NARROW if number == 1 else _WIDE)[part]}"


_BLOCK = re.compile(r"(blocks\.(\d+)\.(\d+))\.(.+)")
_SAME_NAMES = ("conv1", "features.0.0")  # first layers of networks whose names are the same


def torchvision_layers(layers: Sequence[str]) -> dict[str, str] | None:
    """torchvision's name of each layer; None for a network that it does not have."""
    if layers[0] in _SAME_NAMES and not any(layer.startswith("fire") for layer in layers):
        return {layer: layer for layer in layers}
    if layers[0] != "conv_stem":
        return None
    return dict(_counted(layers))


def _counted(layers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The stem, the blocks, and the head, which MobileNet v3 has behind its pooling."""
    ends_in_conv = any(_part(layer) == "conv" for layer in layers)
    yield from (("conv_stem", "features.0.0"), ("bn1", "features.0.1"))
    blocks = groupby((layer for layer in layers if _BLOCK.match(layer)), key=_block)
    feature = 0
    for count, (block, parts) in enumerate(blocks, start=1):
        _, stage, index = block.split(".")
        feature = count if ends_in_conv else int(stage) + 1
        inside = f"features.{feature}" if ends_in_conv else f"features.{feature}.{index}"
        yield from _of_block(list(parts), inside)
    if ends_in_conv:
        yield from (("conv_head", "classifier.0"), ("classifier", "classifier.3"))
    else:
        yield from (
            ("conv_head", f"features.{feature + 1}.0"),
            ("bn2", f"features.{feature + 1}.1"),
        )
        yield "classifier", "classifier.1"


def _of_block(layers: list[str], prefix: str) -> Iterator[tuple[str, str]]:
    """A convolution or a squeeze begins the next part; MobileNet v3 ends with a bare one."""
    if _part(layers[0]) == "conv":
        yield from zip(layers, (f"{prefix}.0", f"{prefix}.1"), strict=False)
        return
    part = -1
    for layer in layers:
        word = _part(layer)
        begins = word.startswith("conv") or word == "se.conv_reduce"
        part += begins
        ending = {"se.conv_reduce": "fc1", "se.conv_expand": "fc2"}.get(word)
        yield layer, f"{prefix}.block.{part}.{ending or ('0' if begins else '1')}"


def _block(layer: str) -> str:
    found = _BLOCK.match(layer)
    return found[1] if found else ""


def _part(layer: str) -> str:
    """The name within its block."""
    found = _BLOCK.match(layer)
    return found[4] if found else ""


CONVOY = "convoy"
_PROXY = ".proxy"  # of proxy-normalised activations, which other programs do not have
TRACKED = ".num_batches_tracked"  # a count that torch keeps for each batch norm; it has no effect


@dataclass(frozen=True)
class ForeignName:
    """A tensor's name elsewhere, and whether a 1 × 1 convolution of ours is linear there."""

    name: str
    linear: bool = False


Layers = dict[str, str]  # our layer → its name elsewhere
Rename = Callable[[Sequence[str]], Layers | None]


def unchanged(layers: Sequence[str]) -> Layers:
    """Our own checkpoints."""
    return {layer: layer for layer in layers}


# Where two fit equally well, as for ResNet, the first is taken.
NAMINGS: dict[str, Rename] = {
    "torchvision": torchvision_layers,
    "timm": timm_layers,
    CONVOY: unchanged,
}


def foreign_names(naming: str, names: Sequence[str]) -> dict[str, ForeignName] | None:
    """Our name of each tensor → the foreign one; None if the naming has no such network."""
    if naming != CONVOY and any(name.endswith(_PROXY) for name in names):
        return None
    layers = NAMINGS[naming](list(dict.fromkeys(_layer(name) for name in names)))
    if layers is None:
        return None
    return {name: _tensor(name, layers[_layer(name)]) for name in names}


def detect(found: Collection[str], names: Sequence[str]) -> str:
    """The naming that knows most of the names found."""
    known = {naming: foreign_names(naming, names) or {} for naming in NAMINGS}
    hits = {
        naming: sum(other.name in found for other in table.values())
        for naming, table in known.items()
    }
    return max(hits, key=lambda naming: hits[naming])


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _tensor(name: str, layer: str) -> ForeignName:
    linear = _layer(name) == "conv_head" and layer.startswith("classifier")
    return ForeignName(f"{layer}.{name.rpartition('.')[2]}", linear and name.endswith(".weight"))
