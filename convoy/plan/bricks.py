"""Convolutions, norms and activations as a configuration wants them: what all families build of."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.plan.first_weights import First
from convoy.plan.inverted import Own
from convoy.plan.layers import LayerPlan, Route
from convoy.plan.operations import Activation, Conv, Linear, MaxPool, Norm, PadChannels

USUAL = FamilyConfig()  # nobody asked for anything special


@dataclass(frozen=True)
class Beginning:
    """The rules of first weights of a family."""

    plain: First
    grouped: First
    head: First


# What the TensorFlow and PopART applications do in all of their families but one.
BEGINNINGS = {
    "tensorflow": Beginning(First.LECUN, First.LECUN, First.GLOROT),
    "popart": Beginning(First.GLOROT, First.GLOROT, First.GLOROT),
}


class Bricks:
    """Holds what every layer needs to know, so that a family reads like its network."""

    def __init__(self, config: NetworkConfig, beginnings: dict[str, Beginning]) -> None:
        self.config = config
        self.beginning = (BEGINNINGS | beginnings)[config.weight_init]

    def image(self, channels: int) -> tuple[int, list[LayerPlan]]:
        """The channels that the first convolution sees, and what makes them so many."""
        if not self.config.input_image_padding:
            return channels, []
        return channels + 1, [LayerPlan("pad", PadChannels(1, 1))]

    def conv(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> Conv:
        """A convolution with a norm behind it; without norms it has a bias."""
        bias = self.config.norm_type == "none"
        rule = self.beginning.grouped if groups > 1 else self.beginning.plain
        return Conv(inputs, outputs, kernel, stride, bias, groups, self.config.conv_padding, rule)

    def filter_conv(self, channels: int, kernel: int, stride: int, groups: int) -> Conv:
        """A convolution within groups of channels; where one group is left it begins as all do."""
        conv = self.conv(channels, channels, kernel, stride, groups)
        return replace(conv, first=self.beginning.grouped)

    def gate_conv(self, inputs: int, outputs: int) -> Conv:
        """A convolution of one pixel, with a bias and no norm."""
        return Conv(inputs, outputs, 1, bias=True, first=self.beginning.plain)

    def pool(self) -> MaxPool:
        return MaxPool(self.config.conv_padding)

    def head(self, inputs: int, classes: int) -> Linear:
        return Linear(inputs, classes, self.beginning.head)

    def norm(
        self, name: str, channels: int, route: Route = Route.MAIN, own: Own = Own.BOTH
    ) -> Iterator[LayerPlan]:
        """The norm behind a convolution, if there are norms."""
        config = self.config
        if config.norm_type == "none":
            return
        norm = Norm(
            channels,
            config.norm_type,
            config.norm_num_groups,
            config.norm_eps,
            config.batchnorm_momentum,
            zero=own is Own.ZERO,
            scale=own is not Own.NOTHING,
            offset=own in (Own.BOTH, Own.ZERO),
            strided=config.enable_fast_groupnorm,
            two_passes=config.stable_norm,
            first_variance=0.0 if config.weight_init == "popart" else 1.0,
        )
        yield LayerPlan(name, norm, route)


def activation(name: str, kind: str = "relu") -> LayerPlan:
    """A function of each element."""
    return LayerPlan(name, Activation(kind))
