"""MobileNet v2 (torchvision names) and v3 (timm names) as lists of named layers.

The v3 of the PyTorch application has a wider head than the published one, without a bias; both
are available.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.models.blocks import (
    DEFAULT_FAMILY,
    InitRules,
    InvertedBlock,
    LayerFactory,
    SqueezeExcite,
    activation,
)
from convoy.models.layers import (
    ConvSpec,
    DropoutSpec,
    FlattenSpec,
    GlobalPoolSpec,
    InitRule,
    LayerPlan,
    SpatialMeanSpec,
)

DROPOUT = 0.2
INIT_RULES_V2 = {
    "pytorch": InitRules(
        InitRule.KAIMING_NORMAL_FAN_OUT, InitRule.KAIMING_NORMAL_FAN_OUT, InitRule.NORMAL_STD_001
    )
}
INIT_RULES_V3 = {
    "pytorch": InitRules(InitRule.TORCH_DEFAULT, InitRule.TORCH_DEFAULT, InitRule.TORCH_DEFAULT)
}


def mobilenet_layers(
    config: NetworkConfig, channels: int, classes: int, family: FamilyConfig = DEFAULT_FAMILY
) -> tuple[LayerPlan, ...]:
    """All layers, from the image to the logits."""
    rate = DROPOUT if family.dropout_rate is None else family.dropout_rate
    if config.model == "mobilenet":
        return tuple(_v2(LayerFactory(config, INIT_RULES_V2), channels, classes, rate))
    factory = LayerFactory(config, INIT_RULES_V3)
    return tuple(_v3(factory, V3[config.model], channels, classes, rate))


# Expansion ratio, output channels, blocks, stride of the first block.
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
    channels, padding = factory.padded_input(channels)
    yield from padding
    yield from _conv_norm_act(factory, "features/0", factory.conv(channels, width, 3, 2))
    for ratio, outputs, blocks, stride in _V2:
        for repeat in range(blocks):
            index += 1
            expanded, stride = width * ratio, 1 if repeat else stride
            block = InvertedBlock(
                width, expanded, outputs, 3, stride, expanded, "relu6", expands=ratio > 1
            )
            for layer in block.layers("", factory):
                position = _V2_NAMES[block.expands][layer.name.removeprefix("/")]
                yield replace(layer, name=f"features/{index}/{position}")
            width = outputs
    yield from _conv_norm_act(factory, f"features/{index + 1}", factory.conv(width, _V2_TOP))
    yield LayerPlan("avgpool", GlobalPoolSpec())
    if dropout:
        yield LayerPlan("classifier/0", DropoutSpec(dropout))
    yield LayerPlan("classifier/1", factory.classifier(_V2_TOP, classes))


def _conv_norm_act(factory: LayerFactory, name: str, conv: ConvSpec) -> Iterator[LayerPlan]:
    yield LayerPlan(f"{name}/0", conv)
    yield from factory.norm(f"{name}/1", conv.outputs)
    yield activation(f"{name}/2", "relu6")


@dataclass(frozen=True)
class _V3Block:
    expanded_channels: int
    outputs: int
    kernel: int
    stride: int
    has_gate: bool
    activation: str


_RELU, _HARD_SWISH = "relu", "hard_swish"

_LARGE = (
    _V3Block(16, 16, 3, 1, False, _RELU),
    _V3Block(64, 24, 3, 2, False, _RELU),
    _V3Block(72, 24, 3, 1, False, _RELU),
    _V3Block(72, 40, 5, 2, True, _RELU),
    _V3Block(120, 40, 5, 1, True, _RELU),
    _V3Block(120, 40, 5, 1, True, _RELU),
    _V3Block(240, 80, 3, 2, False, _HARD_SWISH),
    _V3Block(200, 80, 3, 1, False, _HARD_SWISH),
    _V3Block(184, 80, 3, 1, False, _HARD_SWISH),
    _V3Block(184, 80, 3, 1, False, _HARD_SWISH),
    _V3Block(480, 112, 3, 1, True, _HARD_SWISH),
    _V3Block(672, 112, 3, 1, True, _HARD_SWISH),
    _V3Block(672, 160, 5, 2, True, _HARD_SWISH),
    _V3Block(960, 160, 5, 1, True, _HARD_SWISH),
    _V3Block(960, 160, 5, 1, True, _HARD_SWISH),
)
_SMALL = (
    _V3Block(16, 16, 3, 2, True, _RELU),
    _V3Block(72, 24, 3, 2, False, _RELU),
    _V3Block(88, 24, 3, 1, False, _RELU),
    _V3Block(96, 40, 5, 2, True, _HARD_SWISH),
    _V3Block(240, 40, 5, 1, True, _HARD_SWISH),
    _V3Block(240, 40, 5, 1, True, _HARD_SWISH),
    _V3Block(120, 48, 5, 1, True, _HARD_SWISH),
    _V3Block(144, 48, 5, 1, True, _HARD_SWISH),
    _V3Block(288, 96, 5, 2, True, _HARD_SWISH),
    _V3Block(576, 96, 5, 1, True, _HARD_SWISH),
    _V3Block(576, 96, 5, 1, True, _HARD_SWISH),
)
_V3_STEM = 16


@dataclass(frozen=True)
class _V3Spec:
    blocks: tuple[_V3Block, ...]
    last_channels: int  # of the last convolution before pooling
    head_channels: int  # between pooling and the classifier
    head_bias: bool


V3 = {
    "mobilenet-v3-large": _V3Spec(_LARGE, 960, 1280, False),
    "mobilenet-v3-small": _V3Spec(_SMALL, 576, 1280, False),
    "mobilenet-v3-large-published": _V3Spec(_LARGE, 960, 1280, True),
    "mobilenet-v3-small-published": _V3Spec(_SMALL, 576, 1024, True),
}


def _v3(
    factory: LayerFactory, spec: _V3Spec, channels: int, classes: int, dropout: float
) -> Iterator[LayerPlan]:
    channels, padding = factory.padded_input(channels)
    yield from padding
    yield LayerPlan("conv_stem", factory.conv(channels, _V3_STEM, 3, 2))
    yield from factory.norm("bn1", _V3_STEM)
    yield activation("act1", _HARD_SWISH)
    yield from _v3_blocks(factory, spec)
    yield LayerPlan("global_pool", SpatialMeanSpec())
    head = ConvSpec(
        spec.last_channels, spec.head_channels, 1, bias=spec.head_bias, init=factory.init.conv
    )
    yield LayerPlan("conv_head", head)
    yield activation("act2", _HARD_SWISH)
    yield LayerPlan("flatten", FlattenSpec())
    if dropout:
        yield LayerPlan("dropout", DropoutSpec(dropout))
    yield LayerPlan("classifier", factory.classifier(spec.head_channels, classes))


def _v3_blocks(factory: LayerFactory, spec: _V3Spec) -> Iterator[LayerPlan]:
    """Blocks of equal width form a group; the convolution after them is the last group."""
    inputs, group = _V3_STEM, 0
    for group, (outputs, blocks) in enumerate(groupby(spec.blocks, attrgetter("outputs"))):
        for repeat, block in enumerate(blocks):
            reduced = -(-block.expanded_channels // 32) * 8  # a quarter, rounded up to 8n
            inverted = InvertedBlock(
                inputs,
                block.expanded_channels,
                outputs,
                block.kernel,
                block.stride,
                block.expanded_channels,
                block.activation,
                SqueezeExcite(reduced, _RELU, "hard_sigmoid") if block.has_gate else None,
                expands=block.expanded_channels != inputs,
            )
            yield from inverted.layers(f"blocks/{group}/{repeat}", factory)
            inputs = outputs
    name = f"blocks/{group + 1}/0"
    yield LayerPlan(f"{name}/conv", factory.conv(inputs, spec.last_channels))
    yield from factory.norm(f"{name}/bn1", spec.last_channels)
    yield activation(f"{name}/act1", _HARD_SWISH)
