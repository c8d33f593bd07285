"""MobileNet v2 (torchvision's names) and v3 (timm's names) as ordered named layers.

The v3 of the PyTorch application has a wider head than the published one, and no bias in it:
both are here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.models.blocks import (
    DEFAULT_FAMILY,
    Gate,
    InitRules,
    InvertedBlock,
    LayerFactory,
    activation,
)
from convoy.models.layers import (
    ConvSpec,
    DropoutSpec,
    FlattenSpec,
    GlobalPoolSpec,
    InitRule,
    LayerPlan,
    SqueezeSpec,
)

DROPOUT = 0.2
INIT_RULES_V2 = {"pytorch": InitRules(InitRule.HE, InitRule.HE, InitRule.SMALL)}
INIT_RULES_V3 = {"pytorch": InitRules(InitRule.TORCH, InitRule.TORCH, InitRule.TORCH)}


def mobilenet_layers(
    config: NetworkConfig, channels: int, classes: int, family: FamilyConfig = DEFAULT_FAMILY
) -> tuple[LayerPlan, ...]:
    """The whole network, from the image to the logits."""
    rate = DROPOUT if family.dropout_rate is None else family.dropout_rate
    if config.model == "mobilenet":
        return tuple(_v2(LayerFactory(config, INIT_RULES_V2), channels, classes, rate))
    factory = LayerFactory(config, INIT_RULES_V3)
    return tuple(_v3(factory, V3[config.model], channels, classes, rate))


# Widening, outputs, blocks, stride of the first of them.
_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_V2_STEM, _V2_TOP = 32, 1280
_V2_NAMES = {
    True: {
        "conv_pw": "conv/0/0",
        "bn1": "conv/0/1",
        "act1": "conv/0/2",
        "conv_dw": "conv/1/0",
        "bn2": "conv/1/1",
        "act2": "conv/1/2",
        "conv_pwl": "conv/2",
        "bn3": "conv/3",
        "add": "add",
    },
    False: {
        "conv_dw": "conv/0/0",
        "bn1": "conv/0/1",
        "act1": "conv/0/2",
        "conv_pw": "conv/1",
        "bn2": "conv/2",
        "add": "add",
    },
}


def _v2(factory: LayerFactory, channels: int, classes: int, dropout: float) -> Iterator[LayerPlan]:
    width, index = _V2_STEM, 0
    channels, padding = factory.image(channels)
    yield from padding
    yield from _simple(factory, "features/0", factory.conv(channels, width, 3, 2))
    for ratio, outputs, blocks, stride in _V2:
        for repeat in range(blocks):
            index += 1
            hidden, stride = width * ratio, 1 if repeat else stride
            block = InvertedBlock(
                width, hidden, outputs, 3, stride, hidden, "relu6", widens=ratio > 1
            )
            for layer in block.layers("", factory):
                place = _V2_NAMES[block.widens][layer.name.removeprefix("/")]
                yield replace(layer, name=f"features/{index}/{place}")
            width = outputs
    yield from _simple(factory, f"features/{index + 1}", factory.conv(width, _V2_TOP))
    yield LayerPlan("avgpool", GlobalPoolSpec())
    if dropout:
        yield LayerPlan("classifier/0", DropoutSpec(dropout))
    yield LayerPlan("classifier/1", factory.head(_V2_TOP, classes))


def _simple(factory: LayerFactory, name: str, conv: ConvSpec) -> Iterator[LayerPlan]:
    yield LayerPlan(f"{name}/0", conv)
    yield from factory.norm(f"{name}/1", conv.outputs)
    yield activation(f"{name}/2", "relu6")


@dataclass(frozen=True)
class _Block:
    """One block of v3."""

    hidden: int
    outputs: int
    kernel: int
    stride: int
    gated: bool
    activation: str


_RE, _HS = "relu", "hard_swish"

_LARGE = (
    _Block(16, 16, 3, 1, False, _RE),
    _Block(64, 24, 3, 2, False, _RE),
    _Block(72, 24, 3, 1, False, _RE),
    _Block(72, 40, 5, 2, True, _RE),
    _Block(120, 40, 5, 1, True, _RE),
    _Block(120, 40, 5, 1, True, _RE),
    _Block(240, 80, 3, 2, False, _HS),
    _Block(200, 80, 3, 1, False, _HS),
    _Block(184, 80, 3, 1, False, _HS),
    _Block(184, 80, 3, 1, False, _HS),
    _Block(480, 112, 3, 1, True, _HS),
    _Block(672, 112, 3, 1, True, _HS),
    _Block(672, 160, 5, 2, True, _HS),
    _Block(960, 160, 5, 1, True, _HS),
    _Block(960, 160, 5, 1, True, _HS),
)
_SMALL = (
    _Block(16, 16, 3, 2, True, _RE),
    _Block(72, 24, 3, 2, False, _RE),
    _Block(88, 24, 3, 1, False, _RE),
    _Block(96, 40, 5, 2, True, _HS),
    _Block(240, 40, 5, 1, True, _HS),
    _Block(240, 40, 5, 1, True, _HS),
    _Block(120, 48, 5, 1, True, _HS),
    _Block(144, 48, 5, 1, True, _HS),
    _Block(288, 96, 5, 2, True, _HS),
    _Block(576, 96, 5, 1, True, _HS),
    _Block(576, 96, 5, 1, True, _HS),
)
_V3_STEM = 16


@dataclass(frozen=True)
class _V3Shape:
    blocks: tuple[_Block, ...]
    last: int  # channels of the last convolution over the image
    head: int  # channels between it and the classifier
    head_bias: bool


V3 = {
    "mobilenet-v3-large": _V3Shape(_LARGE, 960, 1280, False),
    "mobilenet-v3-small": _V3Shape(_SMALL, 576, 1280, False),
    "mobilenet-v3-large-published": _V3Shape(_LARGE, 960, 1280, True),
    "mobilenet-v3-small-published": _V3Shape(_SMALL, 576, 1024, True),
}


def _v3(
    factory: LayerFactory, shape: _V3Shape, channels: int, classes: int, dropout: float
) -> Iterator[LayerPlan]:
    channels, padding = factory.image(channels)
    yield from padding
    yield LayerPlan("conv_stem", factory.conv(channels, _V3_STEM, 3, 2))
    yield from factory.norm("bn1", _V3_STEM)
    yield activation("act1", _HS)
    yield from _v3_blocks(factory, shape)
    yield LayerPlan("global_pool", SqueezeSpec())
    head = ConvSpec(shape.last, shape.head, 1, bias=shape.head_bias, init=factory.init.plain)
    yield LayerPlan("conv_head", head)
    yield activation("act2", _HS)
    yield LayerPlan("flatten", FlattenSpec())
    if dropout:
        yield LayerPlan("dropout", DropoutSpec(dropout))
    yield LayerPlan("classifier", factory.head(shape.head, classes))


def _v3_blocks(factory: LayerFactory, shape: _V3Shape) -> Iterator[LayerPlan]:
    """Blocks of one width are a group, and the convolution behind them is the last group."""
    inputs, group = _V3_STEM, 0
    for group, (outputs, blocks) in enumerate(groupby(shape.blocks, attrgetter("outputs"))):
        for repeat, block in enumerate(blocks):
            inner = -(-block.hidden // 32) * 8  # a quarter, up to the next multiple of 8
            inverted = InvertedBlock(
                inputs,
                block.hidden,
                outputs,
                block.kernel,
                block.stride,
                block.hidden,
                block.activation,
                Gate(inner, _RE, "hard_sigmoid") if block.gated else None,
                widens=block.hidden != inputs,
            )
            yield from inverted.layers(f"blocks/{group}/{repeat}", factory)
            inputs = outputs
    name = f"blocks/{group + 1}/0"
    yield LayerPlan(f"{name}/conv", factory.conv(inputs, shape.last))
    yield from factory.norm(f"{name}/bn1", shape.last)
    yield activation(f"{name}/act1", _HS)
