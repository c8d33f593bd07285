"""SqueezeNet as a list of named layers: fire modules, optionally with bypasses around some.

x ─ squeeze ─┬─ expand1x1 ─┬─ concat ─ relu
             └─ expand3x3 ─┘
"""

from collections.abc import Iterator
from dataclasses import replace

from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.models.blocks import DEFAULT_FAMILY, InitRules, LayerFactory, activation
from convoy.models.layers import (
    AddSpec,
    ConcatSpec,
    ConvSpec,
    DropoutSpec,
    GlobalPoolSpec,
    InitRule,
    LayerPlan,
    MaxPoolSpec,
    Route,
)

STEM = 96
FIRE_MODULES = range(2, 10)
POOL_AFTER = (4, 8)  # a pooling layer follows these modules
BYPASSED = (3, 5, 7, 9)
DROPOUT = 0.5
# Without norms, the init rule must preserve the variance of activations.
_RULE = InitRule.KAIMING_UNIFORM_FAN_IN
INIT_RULES = {
    "pytorch": InitRules(_RULE, _RULE, InitRule.NORMAL_STD_001),  # as in torchvision
    "tensorflow": InitRules(
        InitRule.TRUNC_NORMAL_FAN_IN, InitRule.TRUNC_NORMAL_FAN_IN, InitRule.TRUNC_NORMAL_FAN_IN
    ),
}


def squeezenet_layers(
    config: NetworkConfig, channels: int, classes: int, family: FamilyConfig = DEFAULT_FAMILY
) -> tuple[LayerPlan, ...]:
    """All layers, from the image to the logits. No convolution has a bias or a norm."""
    return tuple(SqueezeNetBuilder(config, family).network(channels, classes))


class SqueezeNetBuilder:
    """Yields the layers of the network in order."""

    def __init__(self, config: NetworkConfig, family: FamilyConfig) -> None:
        self.factory = LayerFactory(config, INIT_RULES)
        self.family = family

    def network(self, channels: int, classes: int) -> Iterator[LayerPlan]:
        channels, padding = self.factory.padded_input(channels)
        yield from padding
        yield LayerPlan("conv1", self.conv(channels, STEM, 7, 2))
        yield activation("relu1")
        yield LayerPlan("pool1", MaxPoolSpec("none"))
        inputs = STEM
        for number in FIRE_MODULES:
            squeezed = 16 * (number // 2)  # the width grows with every second module
            expanded = 4 * squeezed  # of each of the two expansions
            yield from self.fire(number, inputs, squeezed, expanded)
            inputs = 2 * expanded
            if number in POOL_AFTER:
                yield LayerPlan(f"pool{number}", MaxPoolSpec("none"))
        rate = DROPOUT if self.family.dropout_rate is None else self.family.dropout_rate
        if rate:
            yield LayerPlan("dropout", DropoutSpec(rate))
        # No ReLU here, unlike the reference: it soon leaves all logits at 0, without gradients.
        last = replace(self.conv(inputs, classes), init=self.factory.init.classifier)
        yield LayerPlan("conv10", last)
        yield LayerPlan("avgpool", GlobalPoolSpec())

    def fire(self, number: int, inputs: int, squeezed: int, expanded: int) -> Iterator[LayerPlan]:
        name = f"fire{number}"
        bypassed = self.family.use_bypass and number in BYPASSED
        route = Route.FORK if bypassed else Route.MAIN
        yield LayerPlan(f"{name}/squeeze", self.conv(inputs, squeezed), route)
        yield activation(f"{name}/squeeze_relu")
        yield LayerPlan(f"{name}/expand1x1", self.conv(squeezed, expanded), Route.FORK)
        yield LayerPlan(f"{name}/expand3x3", self.conv(squeezed, expanded, 3), Route.SIDE)
        yield LayerPlan(f"{name}/concat", ConcatSpec(expanded), Route.JOIN)
        yield activation(f"{name}/relu")
        if bypassed:
            yield LayerPlan(f"{name}/add", AddSpec(), Route.JOIN)

    def conv(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> ConvSpec:
        padding, rule = self.factory.config.conv_padding, self.factory.init.conv
        return ConvSpec(inputs, outputs, kernel, stride, padding=padding, init=rule)
