"""SqueezeNet as ordered named layers: fire modules, with or without a bypass around some.

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
# Number of the module: channels it squeezes to, and of each of its two expansions.
FIRES = {
    2: (16, 64),
    3: (16, 64),
    4: (32, 128),
    5: (32, 128),
    6: (48, 192),
    7: (48, 192),
    8: (64, 256),
    9: (64, 256),
}
POOLED = (4, 8)  # behind these
BYPASSED = (3, 5, 7, 9)
DROPOUT = 0.5
# No norm puts right what grows from layer to layer, so the rule keeps the size of what comes in.
_RULE = InitRule.HE_OF_INPUTS
INIT_RULES = {
    "pytorch": InitRules(_RULE, _RULE, InitRule.SMALL),  # as torchvision has it
    "tensorflow": InitRules(InitRule.LECUN, InitRule.LECUN, InitRule.LECUN),
}


def squeezenet_layers(
    config: NetworkConfig, channels: int, classes: int, family: FamilyConfig = DEFAULT_FAMILY
) -> tuple[LayerPlan, ...]:
    """The whole network, from the image to the logits. No convolution has a bias or a norm."""
    return tuple(
        SqueezeNetBuilder(LayerFactory(config, INIT_RULES), family).network(channels, classes)
    )


class SqueezeNetBuilder:
    """The methods read like the network."""

    def __init__(self, factory: LayerFactory, family: FamilyConfig) -> None:
        self.factory = factory
        self.family = family

    def network(self, channels: int, classes: int) -> Iterator[LayerPlan]:
        channels, padding = self.factory.image(channels)
        yield from padding
        yield LayerPlan("conv1", self.conv(channels, STEM, 7, 2))
        yield activation("relu1")
        yield LayerPlan("pool1", MaxPoolSpec("none"))
        inputs = STEM
        for number, (squeezed, expanded) in FIRES.items():
            yield from self.fire(number, inputs, squeezed, expanded)
            inputs = 2 * expanded
            if number in POOLED:
                yield LayerPlan(f"pool{number}", MaxPoolSpec("none"))
        rate = DROPOUT if self.family.dropout_rate is None else self.family.dropout_rate
        if rate:
            yield LayerPlan("dropout", DropoutSpec(rate))
        # A rectifier here, which the application had, soon leaves all logits at 0 and no gradient.
        last = replace(self.conv(inputs, classes), init=self.factory.init.head)
        yield LayerPlan("conv10", last)
        yield LayerPlan("avgpool", GlobalPoolSpec())

    def fire(self, number: int, inputs: int, squeezed: int, expanded: int) -> Iterator[LayerPlan]:
        name = f"fire{number}"
        bypassed = self.family.use_bypass and number in BYPASSED
        around = Route.FORK if bypassed else Route.MAIN
        yield LayerPlan(f"{name}/squeeze", self.conv(inputs, squeezed), around)
        yield activation(f"{name}/squeeze_relu")
        yield LayerPlan(f"{name}/expand1x1", self.conv(squeezed, expanded), Route.FORK)
        yield LayerPlan(f"{name}/expand3x3", self.conv(squeezed, expanded, 3), Route.SIDE)
        yield LayerPlan(f"{name}/concat", ConcatSpec(expanded), Route.JOIN)
        yield activation(f"{name}/relu")
        if bypassed:
            yield LayerPlan(f"{name}/add", AddSpec(), Route.JOIN)

    def conv(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> ConvSpec:
        padding, first = self.factory.config.conv_padding, self.factory.init.plain
        return ConvSpec(inputs, outputs, kernel, stride, padding=padding, init=first)
