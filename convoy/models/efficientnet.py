"""The EfficientNet family as ordered named layers: timm's names, with slashes for dots."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from convoy.config.catalog import MODELS
from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.errors import ConfigError
from convoy.models.blocks import (
    DEFAULT_FAMILY,
    Gate,
    InitRules,
    InvertedBlock,
    LayerFactory,
    Proxy,
    activation_after_norm,
    norm_before_activation,
)
from convoy.models.layers import DropoutSpec, GlobalPoolSpec, InitRule, LayerPlan

INIT_RULES = {
    "pytorch": InitRules(InitRule.HE_OF_GROUP, InitRule.HE_OF_GROUP, InitRule.OUTPUTS),
    "tensorflow": InitRules(InitRule.CUT_HE, InitRule.CUT_HE_OF_GROUP, InitRule.GLOROT),
}
# Where wider groups replace single channels, the PyTorch application leaves them to torch.
WIDER_GROUPS = {"pytorch": InitRules(InitRule.HE_OF_GROUP, InitRule.TORCH, InitRule.OUTPUTS)}
SQUEEZE = 0.25  # of a block's input


@dataclass(frozen=True)
class Scale:
    """A size: how much wider and deeper than B0, and its dropout."""

    width: float
    depth: float
    dropout: float


SCALES = (
    Scale(1.0, 1.0, 0.2),  # B0
    Scale(1.0, 1.1, 0.2),
    Scale(1.1, 1.2, 0.3),
    Scale(1.2, 1.4, 0.3),
    Scale(1.4, 1.8, 0.4),
    Scale(1.6, 2.2, 0.4),
    Scale(1.8, 2.6, 0.5),
    Scale(2.0, 3.1, 0.5),  # B7
)
SMALL = Scale(0.5, 1.0, 0.0)  # for 32 × 32 images
STEM = 32


@dataclass(frozen=True)
class BlockGroup:
    """Blocks of one width; the first of them may halve the image."""

    kernel: int
    repeats: int
    outputs: int
    stride: int


GROUPS = (
    BlockGroup(3, 1, 16, 1),
    BlockGroup(3, 2, 24, 2),
    BlockGroup(5, 2, 40, 2),
    BlockGroup(3, 3, 80, 2),
    BlockGroup(5, 3, 112, 1),
    BlockGroup(5, 4, 192, 2),
    BlockGroup(3, 1, 320, 1),
)


def groups_of(channels: int, group_dim: int) -> int:
    """Groups of so many channels; a narrower layer is one group."""
    return max(channels // group_dim, 1)


def efficientnet_layers(
    config: NetworkConfig, channels: int, classes: int, family: FamilyConfig = DEFAULT_FAMILY
) -> tuple[LayerPlan, ...]:
    """The whole network, from the image to the logits."""
    return tuple(EfficientNetBuilder(config, family).network(channels, classes))


class EfficientNetBuilder:
    """The methods read like the network."""

    def __init__(self, config: NetworkConfig, family: FamilyConfig) -> None:
        entry = MODELS[config.model]
        self.family = family
        self.small = entry.small
        usual = SMALL if entry.small else SCALES[entry.depth]
        self.scale = Scale(
            usual.width if family.width_coefficient is None else family.width_coefficient,
            usual.depth if family.depth_coefficient is None else family.depth_coefficient,
            usual.dropout if family.dropout_rate is None else family.dropout_rate,
        )
        self.group_dim = family.group_dim or 1
        wider = WIDER_GROUPS if self.group_dim > 1 else {}
        self.factory = LayerFactory(config, INIT_RULES | wider)
        self.activation = "relu" if family.use_relu else "swish"
        self.proxy = (
            Proxy(family.proxy_epsilon, family.proxy_recompute) if family.proxy_norm else None
        )

    def network(self, channels: int, classes: int) -> Iterator[LayerPlan]:
        width, proxy = self.width(STEM), self.proxy
        channels, padding = self.factory.image(channels)
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
            # Nothing behind it has a norm that its scale would disturb.
            yield activation_after_norm("act2", self.activation, top, proxy, scaled=False)
            width = top
        yield LayerPlan("global_pool", GlobalPoolSpec())
        if self.scale.dropout:
            yield LayerPlan("dropout", DropoutSpec(self.scale.dropout))
        yield LayerPlan("classifier", self.factory.head(width, classes))

    def blocks(self, inputs: int) -> Iterator[tuple[str, InvertedBlock]]:
        """Each block with its name. The deeper, the likelier is it left out in training."""
        blocks = dict(self.all_blocks(inputs))
        self.refuse_uneven_groups(blocks)
        for number, (name, block) in enumerate(blocks.items()):
            drop = (1 - self.family.block_survival_prob) * number / len(blocks)
            yield name, replace(block, drop=drop)

    def all_blocks(self, inputs: int) -> Iterator[tuple[str, InvertedBlock]]:
        for index, group in enumerate(GROUPS):
            outputs = self.width(group.outputs)
            for repeat in range(math.ceil(group.repeats * self.scale.depth)):
                hidden = inputs * (self.family.expand_ratio if index else 1)
                inner = max(1, int(SQUEEZE * inputs))
                gate = Gate(inner, self.activation, "sigmoid")
                yield (
                    f"blocks/{index}/{repeat}",
                    InvertedBlock(
                        inputs,
                        hidden,
                        outputs,
                        group.kernel,
                        1 if repeat or (self.small and index == 1) else group.stride,
                        groups_of(hidden, self.group_dim),
                        self.activation,
                        gate if self.family.squeeze_excite else None,
                        proxy=self.proxy,
                        widens=hidden > inputs,
                    ),
                )
                inputs = outputs

    def refuse_uneven_groups(self, blocks: Mapping[str, InvertedBlock]) -> None:
        for name, block in blocks.items():
            if block.hidden % block.groups:
                fitting = next(
                    dim
                    for dim in range(self.group_dim, 0, -1)
                    if all(one.hidden % groups_of(one.hidden, dim) == 0 for one in blocks.values())
                )
                raise ConfigError(
                    f"--group-dim {self.group_dim} would cut the {block.hidden} channels of "
                    f"{name}/conv_dw into {block.groups} groups, which they do not divide into; "
                    f"try {fitting}"
                )

    def width(self, channels: int) -> int:
        """Scaled, and rounded half up to a multiple of the divisor; never down by over 10 %."""
        divisor = self.family.depth_divisor
        wanted = channels * self.scale.width
        rounded = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
        return rounded + divisor if rounded < 0.9 * wanted else rounded
