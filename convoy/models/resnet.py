"""ResNet and ResNeXt as lists of named layers (torchvision names, slashes instead of dots).

Small networks (3 × 3 stem, three groups starting at 16 channels) are for 32 × 32 images, large ones
(7 × 7 stem with pooling, four groups starting at 64 channels) for photographs. Either stem works
with any depth. ResNeXt is a ResNet of bottlenecks with grouped 3 × 3 convolutions.
"""

from collections.abc import Iterator

from convoy.config.sections.network import MODELS, FamilyConfig, NetworkConfig
from convoy.errors import ConfigError
from convoy.models.blocks import DEFAULT_FAMILY, InitRules, LayerFactory, activation
from convoy.models.layers import (
    AddSpec,
    ConvSpec,
    GlobalPoolSpec,
    InitRule,
    LayerPlan,
    MaxPoolSpec,
    OpSpec,
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
EXPANSION = 4  # output over inner channels of a bottleneck
GROUP_DIM = 4  # default channels per group of ResNeXt
INIT_RULES = {
    "pytorch": InitRules(
        InitRule.KAIMING_NORMAL_FAN_OUT, InitRule.KAIMING_NORMAL_FAN_OUT, InitRule.TORCH_DEFAULT
    )
}


def resnet_layers(
    config: NetworkConfig, channels: int, classes: int, family: FamilyConfig = DEFAULT_FAMILY
) -> tuple[LayerPlan, ...]:
    """All layers, from the image to the logits."""
    return tuple(ResNetBuilder(config, family).network(channels, classes))


class ResNetBuilder:
    """Yields the layers of the network in order."""

    def __init__(self, config: NetworkConfig, family: FamilyConfig) -> None:
        self.factory = LayerFactory(config, INIT_RULES)
        entry = MODELS[config.model]
        grouped = entry.family == "resnext"
        self.bottleneck = entry.bottleneck
        # The stem and the classifier are 2 layers; a block has 3 or 2, in three groups.
        per_group = (entry.depth - 2) // (9 if entry.bottleneck else 6)
        self.blocks = (per_group,) * 3 if entry.is_small else BLOCKS_LARGE[entry.depth]
        is_wide = not entry.is_small or (grouped and family.widenet)
        self.width = 64 if is_wide else 16  # stem channels
        self.large_stem = config.stem == "large" or (config.stem == "auto" and not entry.is_small)
        auto = "A" if entry.is_small and not entry.bottleneck else "B"
        self.shortcut_type = auto if config.shortcut_type == "auto" else config.shortcut_type
        # Groups of the 3 × 3 convolutions and channels per group (0 without groups).
        self.groups = family.cardinality if grouped else 1
        self.group_dim = (family.group_dim or GROUP_DIM) if grouped else 0
        total = self.groups * self.group_dim
        if total % self.width:
            raise ConfigError(
                f"--cardinality {self.groups} × --group-dim {self.group_dim} = {total} is not "
                f"a multiple of the {self.width} stem channels; "
                f"--group-dim {self.width} always is"
            )

    def network(self, channels: int, classes: int) -> Iterator[LayerPlan]:
        yield from self.stem(channels, self.width)
        inputs = self.width
        for group, blocks in enumerate(self.blocks):
            outputs = (self.width << group) * (EXPANSION if self.bottleneck else 1)
            for block in range(blocks):
                stride = 2 if block == 0 and group > 0 else 1
                convs = self.convs(inputs, outputs, group, stride)
                shortcut = self.shortcut(inputs, outputs, stride, is_first=block == 0)
                yield from self.block(f"layer{group + 1}/{block}", convs, shortcut)
                inputs = outputs
        yield LayerPlan("avgpool", GlobalPoolSpec())
        yield LayerPlan("fc", self.factory.classifier(inputs, classes))

    def stem(self, channels: int, width: int) -> Iterator[LayerPlan]:
        kernel, stride = (7, 2) if self.large_stem else (3, 1)
        channels, padding = self.factory.padded_input(channels)
        yield from padding
        yield LayerPlan("conv1", self.factory.conv(channels, width, kernel, stride))
        yield from self.factory.norm("bn1", width)
        yield activation("relu")
        if self.large_stem:
            yield LayerPlan("maxpool", MaxPoolSpec(self.factory.config.conv_padding))

    def block(
        self, name: str, convs: list[ConvSpec], shortcut: OpSpec | None
    ) -> Iterator[LayerPlan]:
        # Zero init slows the training of small basic networks, so only bottlenecks use it.
        zero_init = (
            self.factory.config.zero_init_last_norm
            and self.bottleneck
            and not isinstance(shortcut, ConvSpec)
        )
        for index, conv in enumerate(convs, start=1):
            last = index == len(convs)
            route = Route.FORK if index == 1 else Route.MAIN
            yield LayerPlan(f"{name}/conv{index}", conv, route)
            yield from self.factory.norm(
                f"{name}/bn{index}", conv.outputs, zero_init=last and zero_init
            )
            if not last:
                yield activation(f"{name}/relu{index}")
        if shortcut is not None:
            yield LayerPlan(f"{name}/downsample/0", shortcut, Route.SIDE)
        if isinstance(shortcut, ConvSpec):
            yield from self.factory.norm(f"{name}/downsample/1", shortcut.outputs, Route.SIDE)
        yield LayerPlan(f"{name}/add", AddSpec(), Route.JOIN)
        yield activation(f"{name}/relu")

    def convs(self, inputs: int, outputs: int, group: int, stride: int) -> list[ConvSpec]:
        """The convolutions of a block; `--resnet-version` decides which one has the stride."""
        conv, inner = self.factory.conv, self.width << group
        if not self.bottleneck:
            return [conv(inputs, outputs, 3, stride), conv(outputs, outputs, 3)]
        if self.group_dim:  # ResNeXt bottlenecks are wider
            inner = inner * self.group_dim * self.groups // self.width
        is_v1 = self.factory.config.resnet_version == "v1"
        first, middle = (stride, 1) if is_v1 else (1, stride)
        return [
            conv(inputs, inner, 1, first),
            conv(inner, inner, 3, middle, self.groups),
            conv(inner, outputs),
        ]

    def shortcut(self, inputs: int, outputs: int, stride: int, is_first: bool) -> OpSpec | None:
        changes = stride != 1 or inputs != outputs
        projects = {"A": False, "B": changes, "C": True, "first": is_first}[self.shortcut_type]
        if projects:
            return self.factory.conv(inputs, outputs, 1, stride)
        return PadChannelsSpec(stride, outputs - inputs) if changes else None
