"""EfficientNet as a list of named layers (timm names, with slashes instead of dots)."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from convoy.config.sections.network import MODELS, FamilyConfig, NetworkConfig
from convoy.errors import ConfigError
from convoy.models.blocks import (
    DEFAULT_FAMILY,
    InitRules,
    InvertedBlock,
    LayerFactory,
    ProxyNorm,
    SqueezeExcite,
    activation_after_norm,
    norm_before_activation,
)
from convoy.models.layers import DropoutSpec, GlobalPoolSpec, InitRule, LayerPlan

INIT_RULES = {
    "pytorch": InitRules(
        InitRule.KAIMING_NORMAL_GROUP_FAN_OUT,
        InitRule.KAIMING_NORMAL_GROUP_FAN_OUT,
        InitRule.UNIFORM_OUT_FEATURES,
    ),
    "tensorflow": InitRules(
        InitRule.TRUNC_KAIMING_FAN_OUT, InitRule.TRUNC_KAIMING_FAN_IN, InitRule.XAVIER_UNIFORM
    ),
}
# With group convolutions instead of depthwise ones, the PyTorch application uses torch's default.
GROUPED_INIT_RULES = {
    "pytorch": InitRules(
        InitRule.KAIMING_NORMAL_GROUP_FAN_OUT, InitRule.TORCH_DEFAULT, InitRule.UNIFORM_OUT_FEATURES
    )
}
SE_RATIO = 0.25  # of a block's input channels


@dataclass(frozen=True)
class CompoundScale:
    """Width and depth relative to B0, and the dropout rate."""

    width: float
    depth: float
    dropout: float


SCALES = (
    CompoundScale(1.0, 1.0, 0.2),  # B0
    CompoundScale(1.0, 1.1, 0.2),
    CompoundScale(1.1, 1.2, 0.3),
    CompoundScale(1.2, 1.4, 0.3),
    CompoundScale(1.4, 1.8, 0.4),
    CompoundScale(1.6, 2.2, 0.4),
    CompoundScale(1.8, 2.6, 0.5),
    CompoundScale(2.0, 3.1, 0.5),  # B7
)
SMALL = CompoundScale(0.5, 1.0, 0.0)  # for 32 × 32 images
STEM = 32


# Blocks of one width: kernel, number of blocks, output channels, stride of the first block.
BLOCK_GROUPS = (
    (3, 1, 16, 1),
    (3, 2, 24, 2),
    (5, 2, 40, 2),
    (3, 3, 80, 2),
    (5, 3, 112, 1),
    (5, 4, 192, 2),
    (3, 1, 320, 1),
)


def conv_groups(channels: int, group_dim: int) -> int:
    """Number of groups of `group_dim` channels; a narrower layer is one group."""
    return max(channels // group_dim, 1)


def efficientnet_layers(
    config: NetworkConfig, channels: int, classes: int, family: FamilyConfig = DEFAULT_FAMILY
) -> tuple[LayerPlan, ...]:
    """All layers, from the image to the logits."""
    return tuple(EfficientNetBuilder(config, family).network(channels, classes))


class EfficientNetBuilder:
    """Yields the layers of the network in order."""

    def __init__(self, config: NetworkConfig, family: FamilyConfig) -> None:
        entry = MODELS[config.model]
        self.family = family
        self.small = entry.is_small
        default = SMALL if entry.is_small else SCALES[entry.depth]
        self.scale = CompoundScale(
            default.width if family.width_coefficient is None else family.width_coefficient,
            default.depth if family.depth_coefficient is None else family.depth_coefficient,
            default.dropout if family.dropout_rate is None else family.dropout_rate,
        )
        self.group_dim = family.group_dim or 1
        grouped_rules = GROUPED_INIT_RULES if self.group_dim > 1 else {}
        self.factory = LayerFactory(config, INIT_RULES | grouped_rules)
        self.activation = "relu" if family.use_relu else "swish"
        self.proxy = (
            ProxyNorm(family.proxy_epsilon, family.proxy_recompute) if family.proxy_norm else None
        )

    def network(self, channels: int, classes: int) -> Iterator[LayerPlan]:
        width, proxy = self.width(STEM), self.proxy
        channels, padding = self.factory.padded_input(channels)
        yield from padding
        stem = self.factory.conv(channels, width, 3, 1 if self.small else 2)
        yield LayerPlan("conv_stem", stem)
        yield from norm_before_activation(self.factory, "bn1", width, proxy)
        yield activation_after_norm("act1", self.activation, width, proxy)
        for name, block in self.blocks(width):
            yield from block.layers(name, self.factory)
            width = block.outputs
        if self.family.top_width:
            top = self.width(self.family.top_width)
            yield LayerPlan("conv_head", self.factory.conv(width, top))
            yield from norm_before_activation(self.factory, "bn2", top, proxy)
            # No norm follows, so it needs no scaling.
            yield activation_after_norm("act2", self.activation, top, proxy, scaled=False)
            width = top
        yield LayerPlan("global_pool", GlobalPoolSpec())
        if self.scale.dropout:
            yield LayerPlan("dropout", DropoutSpec(self.scale.dropout))
        yield LayerPlan("classifier", self.factory.classifier(width, classes))

    def blocks(self, inputs: int) -> Iterator[tuple[str, InvertedBlock]]:
        """Yield each block with its name; the drop path rate grows linearly with depth."""
        blocks = dict(self.all_blocks(inputs))
        self.check_groups(blocks)
        for index, (name, block) in enumerate(blocks.items()):
            rate = (1 - self.family.block_survival_prob) * index / len(blocks)
            yield name, replace(block, drop_path_rate=rate)

    def all_blocks(self, inputs: int) -> Iterator[tuple[str, InvertedBlock]]:
        for index, (kernel, blocks, base_width, stride) in enumerate(BLOCK_GROUPS):
            outputs = self.width(base_width)
            for repeat in range(math.ceil(blocks * self.scale.depth)):
                expanded = inputs * (self.family.expand_ratio if index else 1)
                reduced = max(1, int(SE_RATIO * inputs))
                gate = SqueezeExcite(reduced, self.activation, "sigmoid")
                block = InvertedBlock(
                    inputs,
                    expanded,
                    outputs,
                    kernel,
                    1 if repeat or (self.small and index == 1) else stride,
                    conv_groups(expanded, self.group_dim),
                    self.activation,
                    gate if self.family.squeeze_excite else None,
                    proxy=self.proxy,
                    expands=expanded > inputs,
                )
                yield f"blocks/{index}/{repeat}", block
                inputs = outputs

    def check_groups(self, blocks: Mapping[str, InvertedBlock]) -> None:
        for name, block in blocks.items():
            if block.expanded_channels % block.groups:
                widths = [block.expanded_channels for block in blocks.values()]
                fitting = next(
                    dim
                    for dim in range(self.group_dim, 0, -1)
                    if all(count % conv_groups(count, dim) == 0 for count in widths)
                )
                raise ConfigError(
                    f"--group-dim {self.group_dim} does not split the {block.expanded_channels} "
                    f"channels of {name}/conv_dw into {block.groups} equal groups; try {fitting}"
                )

    def width(self, channels: int) -> int:
        """Scale the channels and round them to a multiple of the divisor, by at most 10 % down."""
        divisor = self.family.depth_divisor
        scaled = channels * self.scale.width
        rounded = max(divisor, int(scaled + divisor / 2) // divisor * divisor)
        return rounded + divisor if rounded < 0.9 * scaled else rounded
