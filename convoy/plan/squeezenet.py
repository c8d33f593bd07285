"""SqueezeNet as ordered named layers: fire modules, with or without a bypass around some.

x ─ squeeze ─┬─ expand1x1 ─┬─ concat ─ relu
             └─ expand3x3 ─┘
"""

from collections.abc import Iterator
from dataclasses import replace

from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.plan.bricks import USUAL, Beginning, Bricks, activation
from convoy.plan.first_weights import First
from convoy.plan.layers import LayerPlan, Route
from convoy.plan.operations import Add, Concat, Conv, Dropout, GlobalPool, MaxPool

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
_RULE = First.HE_OF_INPUTS
BEGINNINGS = {
    "pytorch": Beginning(_RULE, _RULE, First.SMALL),  # as torchvision has it
    "tensorflow": Beginning(First.LECUN, First.LECUN, First.LECUN),
}


def squeezenet_layers(
    config: NetworkConfig, channels: int, classes: int, family: FamilyConfig = USUAL
) -> tuple[LayerPlan, ...]:
    """The whole network, from the image to the logits. No convolution has a bias or a norm."""
    return tuple(_Builder(Bricks(config, BEGINNINGS), family).network(channels, classes))


class _Builder:
    """The methods read like the network."""

    def __init__(self, bricks: Bricks, family: FamilyConfig) -> None:
        self.bricks = bricks
        self.family = family

    def network(self, channels: int, classes: int) -> Iterator[LayerPlan]:
        channels, padding = self.bricks.image(channels)
        yield from padding
        yield LayerPlan("conv1", self.conv(channels, STEM, 7, 2))
        yield activation("relu1")
        yield LayerPlan("pool1", MaxPool("none"))
        inputs = STEM
        for number, (squeezed, expanded) in FIRES.items():
            yield from self.fire(number, inputs, squeezed, expanded)
            inputs = 2 * expanded
            if number in POOLED:
                yield LayerPlan(f"pool{number}", MaxPool("none"))
        rate = DROPOUT if self.family.dropout_rate is None else self.family.dropout_rate
        if rate:
            yield LayerPlan("dropout", Dropout(rate))
        # A rectifier here, which the application had, soon leaves all logits at 0 and no gradient.
        last = replace(self.conv(inputs, classes), first=self.bricks.beginning.head)
        yield LayerPlan("conv10", last)
        yield LayerPlan("avgpool", GlobalPool())

    def fire(self, number: int, inputs: int, squeezed: int, expanded: int) -> Iterator[LayerPlan]:
        name = f"fire{number}"
        bypassed = self.family.use_bypass and number in BYPASSED
        around = Route.FORK if bypassed else Route.MAIN
        yield LayerPlan(f"{name}/squeeze", self.conv(inputs, squeezed), around)
        yield activation(f"{name}/squeeze_relu")
        yield LayerPlan(f"{name}/expand1x1", self.conv(squeezed, expanded), Route.FORK)
        yield LayerPlan(f"{name}/expand3x3", self.conv(squeezed, expanded, 3), Route.SIDE)
        yield LayerPlan(f"{name}/concat", Concat(expanded), Route.JOIN)
        yield activation(f"{name}/relu")
        if bypassed:
            yield LayerPlan(f"{name}/add", Add(), Route.JOIN)

    def conv(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> Conv:
        padding, first = self.bricks.config.conv_padding, self.bricks.beginning.plain
        return Conv(inputs, outputs, kernel, stride, padding=padding, first=first)
