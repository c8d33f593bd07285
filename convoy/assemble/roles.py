"""What a weight is to its layer, which its name alone does not say: who decays, and who is meant
by the names of other programs.
"""

from collections.abc import Collection

from torch import nn

from convoy.models.batch_norm import BatchNorm
from convoy.models.group_norm import GroupNorm
from convoy.models.proxy import ProxyActivation
from convoy.parallel.slice import Slice

_WORDS = {"weight": "gamma", "bias": "beta", "proxy": "proxy"}  # of a norm's own weights


def full_names(layers: Slice) -> dict[str, str]:
    """The weights by name, each with all it may be called: `bn1.weight` is a gamma too."""
    words: dict[nn.Parameter, str] = {
        weight: _WORDS[own]
        for norm in layers.modules()
        if isinstance(norm, BatchNorm | GroupNorm | ProxyActivation)
        for own, weight in norm.named_parameters(recurse=False)
    }
    return {
        name: f"{name} {words[weight]}" if weight in words else name
        for name, weight in layers.named_weights().items()
    }


def without_decay(layers: Slice, spares: str) -> Collection[str] | None:
    """The names `--weight-decay-spares` means; None is every weight of one dimension."""
    if spares == "vectors":
        return None
    norms = {name for name, full in full_names(layers).items() if full != name}
    return norms if spares == "norms" else set()


def named_by(layers: Slice, parts: Collection[str]) -> set[str]:
    """Weights that are called by a name with one of these parts."""
    full = full_names(layers).items()
    return {name for name, words in full if any(part in words for part in parts)}
