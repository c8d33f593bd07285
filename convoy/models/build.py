"""Layer plans → live layers, with weights that depend only on the seed and each layer's name."""

from collections.abc import Iterable

import torch
from torch import nn

from convoy.chance import key
from convoy.models.activations import ACTIVATIONS
from convoy.models.batch_norm import BatchNorm
from convoy.models.chance import Chance, Dropout, DropPath
from convoy.models.first_weights import draw_weights
from convoy.models.group_norm import GroupNorm
from convoy.models.layers import (
    Add,
    Concat,
    GlobalPool,
    Multiply,
    PadChannels,
    Squeeze,
    conv,
    max_pool,
)
from convoy.models.proxy import ProxyActivation, ProxySqueezeExcite
from convoy.moment import Moment
from convoy.plan import operations as plan
from convoy.plan import proxy_operations as proxy
from convoy.plan.layers import LayerPlan
from convoy.plan.operations import Operation

# Operations without figures.
PLAIN: dict[type[Operation], type[nn.Module]] = {
    plan.Add: Add,
    plan.Multiply: Multiply,
    plan.Concat: Concat,
    plan.Squeeze: Squeeze,
    plan.GlobalPool: GlobalPool,
    plan.Flatten: nn.Flatten,
}


def build_layers(
    layers: Iterable[LayerPlan], seed: int, moment: Moment | None = None
) -> dict[str, nn.Module]:
    """The live layers by name, in order, with their first weights.

    `moment` tells layers that draw by chance which micro-batch they are at.
    """
    chance = Chance(seed, moment or Moment())
    built: dict[str, nn.Module] = {}
    for layer in layers:
        built[layer.name] = _build(layer.operation, layer.name, chance)
        _initialize(layer, built[layer.name], seed)
    return built


def _build(operation: Operation, name: str, chance: Chance) -> nn.Module:
    match operation:
        case plan.Conv():
            return conv(operation)
        case plan.Norm(kind="batch"):
            return BatchNorm(operation)
        case plan.Norm():
            return GroupNorm(operation)
        case plan.Linear(inputs, outputs):
            return nn.Linear(inputs, outputs)
        case plan.MaxPool(padding):
            return max_pool(padding)
        case plan.Activation(kind):
            return ACTIVATIONS[kind]()
        case plan.Dropout(rate):
            return Dropout(rate, chance.of(name))
        case plan.DropPath(rate):
            return DropPath(rate, chance.of(name))
        case plan.PadChannels(stride, added):
            return PadChannels(stride, added)
        case proxy.ProxyActivation():
            return ProxyActivation(operation)
        case proxy.ProxySqueezeExcite():
            return ProxySqueezeExcite(operation)
        case _:
            return PLAIN[type(operation)]()


def _initialize(layer: LayerPlan, module: nn.Module, seed: int) -> None:
    """As the plan says: a rule for each layer with weights, one for norms, zero where planned."""
    generator = torch.Generator().manual_seed(key(seed, "weights", layer.name) >> 1)
    match layer.operation, module:
        case (plan.Conv() | plan.Linear()) as operation, (nn.Conv2d() | nn.Linear()):
            draw_weights(operation, module, generator)
        case proxy.ProxySqueezeExcite(_, reduce, expand), ProxySqueezeExcite():
            draw_weights(reduce, module.conv_reduce, generator)
            draw_weights(expand, module.conv_expand, generator)
        case plan.Norm(zero=True), (BatchNorm() | GroupNorm()):
            assert module.weight is not None, "a norm without scale cannot begin at zero"
            nn.init.zeros_(module.weight)
