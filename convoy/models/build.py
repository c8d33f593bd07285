"""Layer plans → live layers, with weights that depend only on the seed and each layer's name."""

import math
from collections.abc import Iterable
from typing import assert_never

import torch
from torch import nn

from convoy.chance import key
from convoy.models.layers import Add, BatchNorm, GlobalPool, PadChannels
from convoy.plan import layers as plan


def build_layers(layers: Iterable[plan.LayerPlan], seed: int) -> dict[str, nn.Module]:
    """The live layers by name, in order, with their first weights."""
    built: dict[str, nn.Module] = {}
    for layer in layers:
        built[layer.name] = _build(layer.operation)
        _initialize(layer, built[layer.name], seed)
    return built


def _build(operation: plan.Operation) -> nn.Module:
    match operation:
        case plan.Conv(inputs, outputs, kernel, stride, bias):
            return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias)
        case plan.Norm(kind="batch"):
            return BatchNorm(operation.channels, operation.eps, operation.momentum)
        case plan.Norm():
            return nn.GroupNorm(operation.groups, operation.channels, operation.eps)
        case plan.Linear(inputs, outputs):
            return nn.Linear(inputs, outputs)
        case plan.MaxPool():
            return nn.MaxPool2d(3, stride=2, padding=1)
        case plan.GlobalPool():
            return GlobalPool()
        case plan.PadChannels(stride, added):
            return PadChannels(stride, added)
        case plan.Add():
            return Add()
        case plan.Relu():
            return nn.ReLU(inplace=True)
        case _ as unreachable:
            assert_never(unreachable)


def _initialize(layer: plan.LayerPlan, module: nn.Module, seed: int) -> None:
    """He's rule for convolutions, torch's for the head, one for norms (zero where planned)."""
    chance = torch.Generator().manual_seed(key(seed, "weights", layer.name) >> 1)
    match layer.operation, module:
        case plan.Conv(), nn.Conv2d(weight=weight, bias=bias):
            fan_out = layer.operation.outputs * layer.operation.kernel**2
            weight.data.normal_(0, math.sqrt(2 / fan_out), generator=chance)
            if bias is not None:
                nn.init.zeros_(bias)
        case plan.Linear(), nn.Linear(weight=weight, bias=bias):
            bound = 1 / math.sqrt(layer.operation.inputs)
            weight.data.uniform_(-bound, bound, generator=chance)
            bias.data.uniform_(-bound, bound, generator=chance)
        case plan.Norm(zero=True), (BatchNorm() | nn.GroupNorm()) as norm:
            nn.init.zeros_(norm.weight)
