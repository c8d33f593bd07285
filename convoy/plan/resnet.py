"""The ResNet family as ordered named layers. Names are torchvision's, with slashes for dots.

A small network (3 × 3 stem, three groups of 16, 32, 64 channels) is made for 32 × 32 images, a
large one (7 × 7 stem with pooling, four groups from 64 channels) for photographs. Any depth may
wear either stem.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from convoy.config.catalog import MODELS
from convoy.config.sections.network import NetworkConfig
from convoy.errors import ConfigError
from convoy.plan.layers import (
    Add,
    Conv,
    GlobalPool,
    LayerPlan,
    Linear,
    MaxPool,
    Norm,
    Operation,
    PadChannels,
    Relu,
    Route,
)

BASIC_LARGE = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
BOTTLENECK_LARGE = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
EXPANSION = 4  # a bottleneck's last convolution widens by this


@dataclass(frozen=True)
class ResNetShape:
    """The figures that tell one ResNet from another."""

    blocks: tuple[int, ...]
    width: int  # channels of the first group
    bottleneck: bool
    large_stem: bool
    shortcut: str  # A, B or C
    version: str


def resnet_shape(config: NetworkConfig) -> ResNetShape:
    """The shape that a configuration asks for; `auto` follows the model."""
    entry = MODELS[config.model]
    blocks: tuple[int, ...]
    if entry.small:
        per_group = (entry.depth - 2) // 6  # two convolutions a block, three groups, stem and head
        blocks, width, bottleneck = (per_group,) * 3, 16, False
    else:
        bottleneck = entry.depth in BOTTLENECK_LARGE
        blocks, width = (BASIC_LARGE | BOTTLENECK_LARGE)[entry.depth], 64
    stem = config.stem if config.stem != "auto" else ("small" if entry.small else "large")
    auto = "A" if entry.small else "B"
    shortcut = auto if config.shortcut_type == "auto" else config.shortcut_type
    return ResNetShape(blocks, width, bottleneck, stem == "large", shortcut, config.resnet_version)


def resnet_layers(config: NetworkConfig, channels: int, classes: int) -> tuple[LayerPlan, ...]:
    """The whole network, from the image to the logits."""
    shape = resnet_shape(config)
    return tuple(_Builder(config, shape).network(channels, classes))


class _Builder:
    """Holds what every layer needs to know, so that the methods read like the network."""

    def __init__(self, config: NetworkConfig, shape: ResNetShape) -> None:
        self.config = config
        self.shape = shape

    def network(self, channels: int, classes: int) -> Iterator[LayerPlan]:
        width = self.shape.width
        yield from self.stem(channels, width)
        inputs = width
        for group, blocks in enumerate(self.shape.blocks):
            inner = width * 2**group
            outputs = inner * (EXPANSION if self.shape.bottleneck else 1)
            for block in range(blocks):
                stride = 2 if block == 0 and group > 0 else 1
                yield from self.block(f"layer{group + 1}/{block}", inputs, inner, stride)
                inputs = outputs
        yield LayerPlan("avgpool", GlobalPool())
        yield LayerPlan("fc", Linear(inputs, classes))

    def stem(self, channels: int, width: int) -> Iterator[LayerPlan]:
        kernel, stride = (7, 2) if self.shape.large_stem else (3, 1)
        yield LayerPlan("conv1", self.conv(channels, width, kernel, stride))
        yield from self.norm("bn1", width)
        yield LayerPlan("relu", Relu())
        if self.shape.large_stem:
            yield LayerPlan("maxpool", MaxPool())

    def block(self, name: str, inputs: int, inner: int, stride: int) -> Iterator[LayerPlan]:
        convs = self.convs(inputs, inner, stride)
        outputs = convs[-1].outputs
        shortcut = self.shortcut(inputs, outputs, stride)
        # Small basic networks learn slower from zero: only bottlenecks start there.
        bare = self.shape.bottleneck and not isinstance(shortcut, Conv)
        zero = self.config.zero_init_last_norm and bare
        for index, conv in enumerate(convs, start=1):
            last = index == len(convs)
            route = Route.FORK if index == 1 else Route.MAIN
            yield LayerPlan(f"{name}/conv{index}", conv, route)
            yield from self.norm(f"{name}/bn{index}", conv.outputs, zero=last and zero)
            if not last:
                yield LayerPlan(f"{name}/relu{index}", Relu())
        if shortcut is not None:
            yield LayerPlan(f"{name}/downsample/0", shortcut, Route.SIDE)
        if isinstance(shortcut, Conv):
            yield from self.norm(f"{name}/downsample/1", outputs, Route.SIDE)
        yield LayerPlan(f"{name}/add", Add(), Route.JOIN)
        yield LayerPlan(f"{name}/relu", Relu())

    def convs(self, inputs: int, inner: int, stride: int) -> list[Conv]:
        """The convolutions of a block, with the stride where the version has it."""
        if not self.shape.bottleneck:
            return [self.conv(inputs, inner, 3, stride), self.conv(inner, inner, 3)]
        first, middle = (stride, 1) if self.shape.version == "v1" else (1, stride)
        return [
            self.conv(inputs, inner, 1, first),
            self.conv(inner, inner, 3, middle),
            self.conv(inner, inner * EXPANSION, 1),
        ]

    def shortcut(self, inputs: int, outputs: int, stride: int) -> Operation | None:
        changes = stride != 1 or inputs != outputs
        if self.shape.shortcut == "C" or (changes and self.shape.shortcut == "B"):
            return self.conv(inputs, outputs, 1, stride)
        return PadChannels(stride, outputs - inputs) if changes else None

    def conv(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> Conv:
        return Conv(inputs, outputs, kernel, stride, bias=self.config.norm_type == "none")

    def norm(
        self, name: str, channels: int, route: Route = Route.MAIN, zero: bool = False
    ) -> Iterator[LayerPlan]:
        config = self.config
        if config.norm_type == "none":
            return
        if config.norm_type == "group" and channels % config.norm_num_groups:
            raise ConfigError(
                f"--norm-num-groups {config.norm_num_groups} does not divide the {channels} "
                f"channels of {name}; try {_largest_divisor(channels, config.norm_num_groups)}"
            )
        norm = Norm(
            channels,
            config.norm_type,
            config.norm_num_groups,
            config.norm_eps,
            config.batchnorm_momentum,
            zero,
        )
        yield LayerPlan(name, norm, route)


def _largest_divisor(number: int, at_most: int) -> int:
    return next(d for d in range(min(number, at_most), 0, -1) if number % d == 0)
