"""Folds batch norm into the convolution before it, for a network that only answers.

With its running statistics a norm is a scale and an offset for each channel, and so are the last
two things a convolution does. The given layers are left alone: those that come out are copies.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise

import torch
from torch import nn

from convoy.layers.norms import BatchNorm
from convoy.models.layers import LayerPlan, Route

Live = dict[str, nn.Module]

# What a convolution makes on its road, the norm takes from it, and nobody else sees it.
_NEIGHBORS = {
    (Route.MAIN, Route.MAIN),
    (Route.FORK, Route.MAIN),
    (Route.SIDE, Route.SIDE),
    (Route.SPUR, Route.SIDE),
}


def fold_norms(
    layers: Sequence[LayerPlan], modules: Mapping[str, nn.Module]
) -> tuple[list[LayerPlan], Live]:
    """The layers without the norms that could be folded, and their live ones by name."""
    made: Live = {}
    folded: set[str] = set()
    for layer, following in pairwise(layers):
        conv, norm = modules[layer.name], modules[following.name]
        neighbors = (layer.route, following.route) in _NEIGHBORS
        if neighbors and isinstance(conv, nn.Conv2d) and isinstance(norm, BatchNorm):
            made[layer.name] = _folded(conv, norm)
            folded.add(following.name)
    kept = [layer for layer in layers if layer.name not in folded]
    return kept, {one.name: made.get(one.name) or deepcopy(modules[one.name]) for one in kept}


@torch.no_grad()
def _folded(conv: nn.Conv2d, norm: BatchNorm) -> nn.Conv2d:
    """In 64 bits, so that only the last rounding of each weight is new."""
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    scale *= 1 if norm.weight is None else norm.weight
    offset = (0 if norm.bias is None else norm.bias) - norm.running_mean.double() * scale
    made = deepcopy(conv)
    weight = conv.weight.double() * scale.view(-1, 1, 1, 1)
    if conv.bias is not None:
        offset += conv.bias.double() * scale
    made.weight.copy_(weight)
    made.bias = nn.Parameter(offset.to(conv.weight.dtype))
    return made
