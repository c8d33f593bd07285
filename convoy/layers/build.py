"""Build modules from layer plans; initial weights depend only on the seed and the layer's name."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from convoy.layers.dropout import Dropout, DropoutRng, DropPath
from convoy.layers.modules import (
    ACTIVATIONS,
    Add,
    Concat,
    GlobalPool,
    Multiply,
    PadChannels,
    ProxyActivation,
    ProxySqueezeExcite,
    build_conv,
    build_max_pool,
)
from convoy.layers.norms import BatchNorm, GroupNorm
from convoy.layers.user_network import USER_NETWORKS
from convoy.models.layers import (
    ActivationSpec,
    AddSpec,
    ConcatSpec,
    ConvSpec,
    DropoutSpec,
    DropPathSpec,
    FlattenSpec,
    GlobalPoolSpec,
    InitRule,
    LayerPlan,
    LinearSpec,
    MaxPoolSpec,
    ModuleSpec,
    MultiplySpec,
    NormSpec,
    OpSpec,
    PadChannelsSpec,
    ProxyActivationSpec,
    ProxySqueezeExciteSpec,
    SpatialMeanSpec,
)
from convoy.rng import StepPosition, key

TRUNCATED_STD = 0.8796  # standard deviation of a standard normal truncated at ± 2


@dataclass(frozen=True)
class InitDistribution:
    """Distribution of a layer's initial weights, and the bound of its uniform bias."""

    kind: str  # normal, truncated, uniform
    std_or_bound: float
    bias: float = 0.0


def init_distribution(operation: ConvSpec | LinearSpec) -> InitDistribution:
    """Evaluate the initialization rule of a layer."""
    inputs, outputs, area, groups = operation.inputs, operation.outputs, 1, 1
    if isinstance(operation, ConvSpec):
        area, groups = operation.kernel**2, operation.groups
    fan_in, fan_out = inputs // groups * area, outputs * area
    match operation.init:
        case InitRule.TORCH_DEFAULT:
            bound = 1 / math.sqrt(fan_in)
            return InitDistribution("uniform", bound, bias=bound)
        case InitRule.KAIMING_NORMAL_FAN_OUT:
            return InitDistribution("normal", math.sqrt(2 / fan_out))
        case InitRule.KAIMING_NORMAL_GROUP_FAN_OUT:
            return InitDistribution("normal", math.sqrt(2 / (fan_out // groups)))
        case InitRule.TRUNC_NORMAL_FAN_IN:
            return InitDistribution("truncated", math.sqrt(1 / fan_in) / TRUNCATED_STD)
        case InitRule.TRUNC_KAIMING_FAN_OUT:
            return InitDistribution("truncated", math.sqrt(2 / fan_out) / TRUNCATED_STD)
        case InitRule.TRUNC_KAIMING_FAN_IN:
            return InitDistribution("truncated", math.sqrt(2 / fan_in) / TRUNCATED_STD)
        case InitRule.XAVIER_UNIFORM:
            return InitDistribution("uniform", math.sqrt(6 / (inputs + outputs)))
        case InitRule.UNIFORM_OUT_FEATURES:
            return InitDistribution("uniform", 1 / math.sqrt(outputs))
        case InitRule.KAIMING_UNIFORM_FAN_IN:
            return InitDistribution("uniform", math.sqrt(6 / fan_in))
        case InitRule.NORMAL_STD_001:
            return InitDistribution("normal", 0.01)


def init_weights(
    operation: ConvSpec | LinearSpec, module: nn.Conv2d | nn.Linear, generator: torch.Generator
) -> None:
    """Draw the weights, then the bias, from one generator."""
    distribution = init_distribution(operation)
    weight, scale = module.weight.data, distribution.std_or_bound
    match distribution.kind:
        case "normal":
            weight.normal_(0, scale, generator=generator)
        case "uniform":
            weight.uniform_(-scale, scale, generator=generator)
        case _:
            nn.init.trunc_normal_(weight, 0, scale, -2 * scale, 2 * scale, generator=generator)
    if module.bias is not None and distribution.bias:
        bound = distribution.bias
        module.bias.data.uniform_(-bound, bound, generator=generator)
    elif module.bias is not None:
        nn.init.zeros_(module.bias)


# Modules without constructor arguments.
PARAMETERLESS: dict[type[OpSpec], type[nn.Module]] = {
    AddSpec: Add,
    MultiplySpec: Multiply,
    ConcatSpec: Concat,
    FlattenSpec: nn.Flatten,
}


def build_layers(
    layers: Iterable[LayerPlan], seed: int, position: StepPosition | None = None
) -> dict[str, nn.Module]:
    """Build and initialize the modules, keyed by layer name, in order.

    `position` tells dropout layers which micro-batch they are processing.
    """
    position = position or StepPosition()
    built: dict[str, nn.Module] = {}
    for layer in layers:
        if isinstance(spec := layer.operation, ModuleSpec):
            network = USER_NETWORKS[spec.model]
            built[layer.name] = network.build(layer.name, spec.classes, spec.seed, position)
            continue
        rng = DropoutRng(seed, layer.name, position)
        built[layer.name] = _build(layer.operation, rng)
        _initialize(layer, built[layer.name], seed)
    return built


def _build(operation: OpSpec, rng: DropoutRng) -> nn.Module:
    match operation:
        case ConvSpec():
            return build_conv(operation)
        case NormSpec(kind="batch"):
            return BatchNorm(operation)
        case NormSpec():
            return GroupNorm(operation)
        case LinearSpec(inputs, outputs):
            return nn.Linear(inputs, outputs)
        case MaxPoolSpec(padding):
            return build_max_pool(padding)
        case ActivationSpec(kind):
            return ACTIVATIONS[kind]()
        case DropoutSpec(rate):
            return Dropout(rate, rng)
        case DropPathSpec(rate):
            return DropPath(rate, rng)
        case SpatialMeanSpec():
            return GlobalPool(flatten=isinstance(operation, GlobalPoolSpec))
        case PadChannelsSpec(stride, extra_channels):
            return PadChannels(stride, extra_channels)
        case ProxyActivationSpec():
            return ProxyActivation(operation)
        case ProxySqueezeExciteSpec():
            return ProxySqueezeExcite(operation)
        case _:
            return PARAMETERLESS[type(operation)]()


def _initialize(layer: LayerPlan, module: nn.Module, seed: int) -> None:
    """Apply the planned init rule; the scale of a norm starts at 1, or at 0 with `zero_init`."""
    generator = torch.Generator().manual_seed(key(seed, "weights", layer.name) >> 1)
    match layer.operation, module:
        case (ConvSpec() | LinearSpec()) as operation, (nn.Conv2d() | nn.Linear()):
            init_weights(operation, module, generator)
        case ProxySqueezeExciteSpec(_, reduce, expand), ProxySqueezeExcite():
            init_weights(reduce, module.conv_reduce, generator)
            init_weights(expand, module.conv_expand, generator)
        case NormSpec(zero_init=True), (BatchNorm() | GroupNorm()):
            assert module.weight is not None, "zero_init needs a norm with a weight"
            nn.init.zeros_(module.weight)
