"""The ResNet and ResNeXt families as ordered named layers: torchvision's names, slashes for dots.

A small network (3 × 3 stem, three groups from 16 channels) is made for 32 × 32 images, a large
one (7 × 7 stem with pooling, four groups from 64 channels) for photographs. Any depth may wear
either stem. ResNeXt is a ResNet of bottlenecks whose 3 × 3 convolutions are cut into groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from convoy.config.catalog import MODELS
from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.errors import ConfigError
from convoy.models.blocks import DEFAULT_FAMILY, InitRules, LayerFactory, NormParameters, activation
from convoy.models.layers import (
    AddSpec,
    ConvSpec,
    GlobalPoolSpec,
    InitRule,
    LayerPlan,
    MaxPoolSpec,
    Operation,
    PadChannelsSpec,
    Route,
)

BLOCKS_LARGE = {
    10: (1, 1, 1, 1),
    14: (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    26: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
EXPANSION = 4  # a bottleneck's last convolution widens by this
GROUP_DIM = 4  # channels in a group of ResNeXt, unless asked for
INIT_RULES = {"pytorch": InitRules(InitRule.HE, InitRule.HE, InitRule.TORCH)}


@dataclass(frozen=True)
class ResNetShape:
    """The figures that tell one ResNet from another."""

    blocks: tuple[int, ...]
    width: int  # channels of the stem
    bottleneck: bool
    large_stem: bool
    shortcut: str  # A, B, C or first
    version: str
    groups: int = 1  # of the 3 × 3 convolutions
    group_dim: int = 0  # channels in each of them; 0 without groups

    def inner(self, group: int) -> int:
        """The channels between a bottleneck's convolutions; those of ResNeXt are wider."""
        filters = self.width << group
        return filters * self.group_dim * self.groups // self.width if self.group_dim else filters


def resnet_shape(config: NetworkConfig, family: FamilyConfig = DEFAULT_FAMILY) -> ResNetShape:
    """The shape that a configuration asks for; `auto` follows the model."""
    entry = MODELS[config.model]
    bottleneck = entry.bottleneck
    per_group = (entry.depth - 2) // (9 if bottleneck else 6)  # of three groups; stem and head
    blocks = (per_group,) * 3 if entry.small else BLOCKS_LARGE[entry.depth]
    stem = config.stem if config.stem != "auto" else ("small" if entry.small else "large")
    auto = "A" if entry.small and not bottleneck else "B"
    shortcut = auto if config.shortcut_type == "auto" else config.shortcut_type
    grouped = entry.family == "resnext"
    width = 64 if not entry.small or (grouped and family.widenet) else 16
    return ResNetShape(
        blocks,
        width,
        bottleneck,
        stem == "large",
        shortcut,
        config.resnet_version,
        family.cardinality if grouped else 1,
        _group_dim(family, width) if grouped else 0,
    )


def _group_dim(family: FamilyConfig, width: int) -> int:
    """As asked for; the width of every group of blocks must come out whole."""
    each = family.group_dim or GROUP_DIM
    if family.cardinality * each % width:
        raise ConfigError(
            f"--cardinality {family.cardinality} × --group-dim {each} = "
            f"{family.cardinality * each} is no multiple of the {width} channels of the stem; "
            f"--group-dim {width} always is"
        )
    return each


def resnet_layers(
    config: NetworkConfig, channels: int, classes: int, family: FamilyConfig = DEFAULT_FAMILY
) -> tuple[LayerPlan, ...]:
    """The whole network, from the image to the logits."""
    shape = resnet_shape(config, family)
    return tuple(ResNetBuilder(LayerFactory(config, INIT_RULES), shape).network(channels, classes))


class ResNetBuilder:
    """The methods read like the network."""

    def __init__(self, factory: LayerFactory, shape: ResNetShape) -> None:
        self.factory = factory
        self.shape = shape

    def network(self, channels: int, classes: int) -> Iterator[LayerPlan]:
        shape = self.shape
        yield from self.stem(channels, shape.width)
        inputs = shape.width
        for group, blocks in enumerate(shape.blocks):
            outputs = (shape.width << group) * (EXPANSION if shape.bottleneck else 1)
            for block in range(blocks):
                stride = 2 if block == 0 and group > 0 else 1
                convs = self.convs(inputs, outputs, group, stride)
                shortcut = self.shortcut(inputs, outputs, stride, is_first=block == 0)
                yield from self.block(f"layer{group + 1}/{block}", convs, shortcut)
                inputs = outputs
        yield LayerPlan("avgpool", GlobalPoolSpec())
        yield LayerPlan("fc", self.factory.head(inputs, classes))

    def stem(self, channels: int, width: int) -> Iterator[LayerPlan]:
        kernel, stride = (7, 2) if self.shape.large_stem else (3, 1)
        channels, padding = self.factory.image(channels)
        yield from padding
        yield LayerPlan("conv1", self.factory.conv(channels, width, kernel, stride))
        yield from self.factory.norm("bn1", width)
        yield activation("relu")
        if self.shape.large_stem:
            yield LayerPlan("maxpool", MaxPoolSpec(self.factory.config.conv_padding))

    def block(
        self, name: str, convs: list[ConvSpec], shortcut: Operation | None
    ) -> Iterator[LayerPlan]:
        # Small basic networks learn slower from zero: only bottlenecks start there.
        bare = self.shape.bottleneck and not isinstance(shortcut, ConvSpec)
        zero = self.factory.config.zero_init_last_norm and bare
        for index, conv in enumerate(convs, start=1):
            last = index == len(convs)
            route = Route.FORK if index == 1 else Route.MAIN
            yield LayerPlan(f"{name}/conv{index}", conv, route)
            parameters = NormParameters.ZERO if last and zero else NormParameters.BOTH
            yield from self.factory.norm(f"{name}/bn{index}", conv.outputs, parameters=parameters)
            if not last:
                yield activation(f"{name}/relu{index}")
        if shortcut is not None:
            yield LayerPlan(f"{name}/downsample/0", shortcut, Route.SIDE)
        if isinstance(shortcut, ConvSpec):
            yield from self.factory.norm(f"{name}/downsample/1", shortcut.outputs, Route.SIDE)
        yield LayerPlan(f"{name}/add", AddSpec(), Route.JOIN)
        yield activation(f"{name}/relu")

    def convs(self, inputs: int, outputs: int, group: int, stride: int) -> list[ConvSpec]:
        """The convolutions of a block, with the stride where the version has it."""
        conv, inner = self.factory.conv, self.shape.inner(group)
        if not self.shape.bottleneck:
            return [conv(inputs, outputs, 3, stride), conv(outputs, outputs, 3)]
        first, middle = (stride, 1) if self.shape.version == "v1" else (1, stride)
        return [
            conv(inputs, inner, 1, first),
            conv(inner, inner, 3, middle, self.shape.groups),
            conv(inner, outputs),
        ]

    def shortcut(self, inputs: int, outputs: int, stride: int, is_first: bool) -> Operation | None:
        changes = stride != 1 or inputs != outputs
        projects = {"A": False, "B": changes, "C": True, "first": is_first}[self.shape.shortcut]
        if projects:
            return self.factory.conv(inputs, outputs, 1, stride)
        return PadChannelsSpec(stride, outputs - inputs) if changes else None
