"""What torchvision and timm call our tensors.

In: the names of a network's tensors, in the order of its layers. Out: for each of them the name
in a naming, or None if that naming has no such network. The structure of the names decides.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from convoy.weights.naming_timm import timm_layers
from convoy.weights.naming_torchvision import torchvision_layers

CONVOY = "convoy"
_PROXY = ".proxy"  # of activations that correct themselves, which nobody else has
TRACKED = ".num_batches_tracked"  # a count that torch keeps beside each batch norm; it does nothing


@dataclass(frozen=True)
class Foreign:
    """A tensor's name elsewhere, and whether a 1 × 1 convolution of ours is linear there."""

    name: str
    linear: bool = False


Layers = dict[str, str]  # our layer → its name elsewhere
Rename = Callable[[Sequence[str]], Layers | None]


def as_they_are(layers: Sequence[str]) -> Layers:
    """Our own checkpoints."""
    return {layer: layer for layer in layers}


# The first that fits best is meant where two are the same, as they are for ResNet.
NAMINGS: dict[str, Rename] = {
    "torchvision": torchvision_layers,
    "timm": timm_layers,
    CONVOY: as_they_are,
}


def foreign_names(naming: str, names: Sequence[str]) -> dict[str, Foreign] | None:
    """Our tensors by name → theirs."""
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
        naming: sum(one.name in found for one in table.values()) for naming, table in known.items()
    }
    return max(hits, key=lambda naming: hits[naming])


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _tensor(name: str, layer: str) -> Foreign:
    linear = _layer(name) == "conv_head" and layer.startswith("classifier")
    return Foreign(f"{layer}.{name.rpartition('.')[2]}", linear and name.endswith(".weight"))
