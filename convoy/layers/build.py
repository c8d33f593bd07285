"""Layer plans → live layers, with weights that depend only on the seed and each layer's name."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
    Squeeze,
    conv,
    max_pool,
)
from convoy.layers.norms import BatchNorm, GroupNorm
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
    MultiplySpec,
    NormSpec,
    Operation,
    PadChannelsSpec,
    ProxyActivationSpec,
    ProxySqueezeExciteSpec,
    SqueezeSpec,
)
from convoy.rng import StepPosition, key

TWO_SIGMA = 0.8796  # the deviation of a standard normal cut off at ± 2


@dataclass(frozen=True)
class Fan:
    """The figures of a layer with weights."""

    inputs: int
    outputs: int
    area: int = 1
    groups: int = 1


@dataclass(frozen=True)
class Draw:
    """What is drawn: a shape, its deviation or bound, and the bound of the bias."""

    shape: str  # normal, cut, uniform
    spread: float
    bias: float = 0.0


def draw_of(first: InitRule, fan: Fan) -> Draw:
    """The rule in numbers."""
    fan_in, fan_out = fan.inputs // fan.groups * fan.area, fan.outputs * fan.area
    match first:
        case InitRule.TORCH:
            bound = 1 / math.sqrt(fan_in)
            return Draw("uniform", bound, bias=bound)
        case InitRule.HE:
            return Draw("normal", math.sqrt(2 / fan_out))
        case InitRule.HE_OF_GROUP:
            return Draw("normal", math.sqrt(2 / (fan_out // fan.groups)))
        case InitRule.LECUN:
            return Draw("cut", math.sqrt(1 / fan_in) / TWO_SIGMA)
        case InitRule.CUT_HE:
            return Draw("cut", math.sqrt(2 / fan_out) / TWO_SIGMA)
        case InitRule.CUT_HE_OF_GROUP:
            return Draw("cut", math.sqrt(2 / fan_in) / TWO_SIGMA)
        case InitRule.GLOROT:
            return Draw("uniform", math.sqrt(6 / (fan.inputs + fan.outputs)))
        case InitRule.OUTPUTS:
            return Draw("uniform", 1 / math.sqrt(fan.outputs))
        case InitRule.HE_OF_INPUTS:
            return Draw("uniform", math.sqrt(6 / fan_in))
        case InitRule.SMALL:
            return Draw("normal", 0.01)


def draw_weights(
    operation: ConvSpec | LinearSpec, module: nn.Conv2d | nn.Linear, generator: torch.Generator
) -> None:
    """Weights, then the bias, from one generator."""
    drawn = draw_of(operation.init, _fan(operation))
    _draw(module.weight.data, drawn, generator)
    if module.bias is None:
        return
    if drawn.bias:
        module.bias.data.uniform_(-drawn.bias, drawn.bias, generator=generator)
    else:
        nn.init.zeros_(module.bias)


def _fan(operation: ConvSpec | LinearSpec) -> Fan:
    if isinstance(operation, LinearSpec):
        return Fan(operation.inputs, operation.outputs)
    return Fan(operation.inputs, operation.outputs, operation.kernel**2, operation.groups)


def _draw(weight: Tensor, drawn: Draw, generator: torch.Generator) -> None:
    spread = drawn.spread
    match drawn.shape:
        case "normal":
            weight.normal_(0, spread, generator=generator)
        case "uniform":
            weight.uniform_(-spread, spread, generator=generator)
        case "cut":
            nn.init.trunc_normal_(weight, 0, spread, -2 * spread, 2 * spread, generator=generator)
        case _:
            raise AssertionError(f"no such shape: {drawn.shape}")


# Operations without arguments.
PLAIN: dict[type[Operation], type[nn.Module]] = {
    AddSpec: Add,
    MultiplySpec: Multiply,
    ConcatSpec: Concat,
    SqueezeSpec: Squeeze,
    GlobalPoolSpec: GlobalPool,
    FlattenSpec: nn.Flatten,
}


def build_layers(
    layers: Iterable[LayerPlan], seed: int, position: StepPosition | None = None
) -> dict[str, nn.Module]:
    """The live layers by name, in order, initialised.

    `position` tells layers that draw random numbers which micro-batch they are at.
    """
    position = position or StepPosition()
    built: dict[str, nn.Module] = {}
    for layer in layers:
        rng = DropoutRng(seed, layer.name, position)
        built[layer.name] = _build(layer.operation, rng)
        _initialize(layer, built[layer.name], seed)
    return built


def _build(operation: Operation, rng: DropoutRng) -> nn.Module:
    match operation:
        case ConvSpec():
            return conv(operation)
        case NormSpec(kind="batch"):
            return BatchNorm(operation)
        case NormSpec():
            return GroupNorm(operation)
        case LinearSpec(inputs, outputs):
            return nn.Linear(inputs, outputs)
        case MaxPoolSpec(padding):
            return max_pool(padding)
        case ActivationSpec(kind):
            return ACTIVATIONS[kind]()
        case DropoutSpec(rate):
            return Dropout(rate, rng)
        case DropPathSpec(rate):
            return DropPath(rate, rng)
        case PadChannelsSpec(stride, added):
            return PadChannels(stride, added)
        case ProxyActivationSpec():
            return ProxyActivation(operation)
        case ProxySqueezeExciteSpec():
            return ProxySqueezeExcite(operation)
        case _:
            return PLAIN[type(operation)]()


def _initialize(layer: LayerPlan, module: nn.Module, seed: int) -> None:
    """As the plan says: a rule for each layer with weights, one for norms, zero where planned."""
    generator = torch.Generator().manual_seed(key(seed, "weights", layer.name) >> 1)
    match layer.operation, module:
        case (ConvSpec() | LinearSpec()) as operation, (nn.Conv2d() | nn.Linear()):
            draw_weights(operation, module, generator)
        case ProxySqueezeExciteSpec(_, reduce, expand), ProxySqueezeExcite():
            draw_weights(reduce, module.conv_reduce, generator)
            draw_weights(expand, module.conv_expand, generator)
        case NormSpec(zero=True), (BatchNorm() | GroupNorm()):
            assert module.weight is not None, "a norm without scale cannot begin at zero"
            nn.init.zeros_(module.weight)
