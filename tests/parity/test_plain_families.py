"""Every family against the same network in plain torch: logits and all gradients, in float64."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.model_families import Small
from support.networks import build_slice, images_and_labels
from support.torch_families import (
    Conv,
    EfficientNet,
    Gate,
    Inverted,
    InvertedV2,
    Last,
    MobileNetV2,
    MobileNetV3,
    Norm,
    Residual,
    ResNet,
    SqueezeNet,
)
from torch import nn

from convoy.parallel.slice import Slice

NO_DROPOUT = {"dropout_rate": 0.0, "block_survival_prob": 1.0}
GROUPS = {"norm_type": "group", "norm_num_groups": 4, "norm_eps": 1e-3}
BATCH: Norm = nn.BatchNorm2d
GROUP: Norm = partial(nn.GroupNorm, 4, eps=1e-3)


def build_ours(options: Mapping[str, Any], size: int) -> Slice:
    """A network with random offsets, scales and statistics."""
    network = build_slice(Small(options, size).plan.layers, seed=2).double()
    rng = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, tensor in network.named_tensors().items():
            noise = torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
            if name.endswith("running_var"):
                tensor.copy_(0.5 + noise.abs())
            elif tensor.dim() == 1:
                tensor.copy_(0.2 * noise + name.endswith("weight"))
    return network


def check_matches_torch(options: Mapping[str, Any], size: int, plain: nn.Module) -> None:
    """Compare outputs in training and evaluation, and all gradients."""
    network, plain = build_ours(options, size), plain.double()
    images, labels = images_and_labels(3, size)
    images = images.double()
    plain.eval()(images)  # initializes lazy layers
    tensors = network.named_tensors()
    missing, unexpected = plain.load_state_dict(tensors, strict=False)

    assert unexpected == [] and all(item.endswith("num_batches_tracked") for item in missing)
    for train in (False, True):
        (output,), expected = network.train(train)(images), plain.train(train)(images)
        torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    F.cross_entropy(output, labels).backward()
    F.cross_entropy(expected, labels).backward()
    theirs = dict(plain.named_parameters())
    weights = network.named_weights()

    assert weights.keys() == theirs.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight.grad, theirs[name].grad, rtol=1e-7, atol=1e-9, msg=name)


def residuals(kind: str) -> list[list[Residual]]:
    """Two blocks in each of three groups, with one kind of shortcut."""
    groups, inputs = [], 16
    for outputs, first_stride in ((16, 1), (32, 2), (64, 2)):
        blocks: list[Residual] = []
        for stride in (first_stride, 1):
            changes = stride > 1 or inputs != outputs
            projects = {"A": False, "B": changes, "C": True, "first": not blocks}[kind]
            shortcut = Conv(inputs, outputs, 1, stride) if projects else None
            convs = [Conv(inputs, outputs, 3, stride), Conv(outputs, outputs, 3)]
            blocks.append(Residual(convs, shortcut, BATCH))
            inputs = outputs
        groups.append(blocks)
    return groups


@pytest.mark.parametrize("kind", ["A", "B", "C", "first"])
def test_a_small_resnet_matches_torch_with_any_shortcut(kind: str):
    plain = ResNet(residuals(kind), Conv(3, 16, 3), BATCH, 64)

    check_matches_torch({"model": "resnet14", "shortcut_type": kind}, 12, plain)


@pytest.mark.parametrize("size", [32, 33, 35])
@pytest.mark.parametrize("padding", ["symmetric", "same"])
def test_a_stem_with_a_pool_matches_torch_with_either_padding(padding: str, size: int):
    plain = ResNet(residuals("B"), Conv(3, 16, 7, 2), BATCH, 64)
    for module in plain.modules():
        if isinstance(module, Conv):
            module.same = padding == "same"
    options = {"shortcut_type": "B", "stem": "large", "conv_padding": padding}

    check_matches_torch({"model": "resnet14", **options}, size, plain)


def bottlenecks(width: int, inner: float, cardinality: int, version: str) -> list[list[Residual]]:
    """One block in each of three groups."""
    groups, inputs = [], width
    for index, stride in enumerate((1, 2, 2)):
        hidden, outputs = int((width << index) * inner), 4 * (width << index)
        first, middle = (stride, 1) if version == "v1" else (1, stride)
        convs = [
            Conv(inputs, hidden, 1, first),
            Conv(hidden, hidden, 3, middle, cardinality),
            Conv(hidden, outputs, 1),
        ]
        groups.append([Residual(convs, Conv(inputs, outputs, 1, stride), BATCH)])
        inputs = outputs
    return groups


@pytest.mark.parametrize("version", ["v1", "v1.5"])
def test_a_bottleneck_matches_torch_in_both_versions(version: str):
    plain = ResNet(bottlenecks(16, 1, 1, version), Conv(3, 16, 3), BATCH, 256)

    check_matches_torch({"model": "resnet11", "resnet_version": version}, 8, plain)


@pytest.mark.parametrize(
    ("options", "width", "inner", "cardinality"),
    [
        ({}, 16, 8, 32),  # 32 × 4 ÷ 16
        ({"widenet": True}, 64, 2, 32),
        ({"cardinality": 8, "group_dim": 6}, 16, 3, 8),
    ],
)
def test_a_resnext_matches_plain_torch(
    options: dict[str, Any], width: int, inner: int, cardinality: int
):
    groups = bottlenecks(width, inner, cardinality, "v1.5")
    plain = ResNet(groups, Conv(3, width, 3), BATCH, 16 * width)

    check_matches_torch({"model": "resnext11", **options}, 8, plain)


WIDTHS = (8, 16, 24, 40, 56, 96, 160)  # half of B0
REPEATS = (1, 2, 2, 3, 3, 4, 1)
KERNELS = (3, 3, 5, 3, 5, 5, 3)


def efficientnet(ratio: int = 6, dim: int = 1, norm: Norm = BATCH) -> EfficientNet:
    """For 32 × 32 images."""
    groups, inputs = [], 16
    for index, (outputs, repeats) in enumerate(zip(WIDTHS, REPEATS, strict=True)):
        blocks = []
        for repeat in range(repeats):
            hidden = inputs * (ratio if index else 1)
            stride = 2 if index in (2, 3, 5) and repeat == 0 else 1
            expand = Conv(inputs, hidden, 1) if index and ratio > 1 else None
            depthwise = Conv(hidden, hidden, KERNELS[index], stride, max(hidden // dim, 1))
            block = Inverted(expand, depthwise, Conv(hidden, outputs, 1), norm)
            block.se = Gate(hidden, inputs // 4, F.silu, torch.sigmoid)
            blocks.append(block)
            inputs = outputs
        groups.append(nn.Sequential(*blocks))
    return EfficientNet(Conv(3, 16, 3), nn.Sequential(*groups), Conv(160, 640, 1), norm)


def efficientnet_with(change: str) -> EfficientNet:
    """An EfficientNet with one change."""
    network = efficientnet()
    for module in network.modules():
        if change == "padding" and isinstance(module, Conv):
            module.same = True
        if change == "relu" and isinstance(module, Inverted | EfficientNet):
            module.act = F.relu
        if change == "relu" and isinstance(module, Gate):
            module.inside = F.relu
        if change == "gates" and isinstance(module, Inverted):
            module.se = nn.Identity()
    if change == "top":
        network.conv_head, network.bn2 = nn.Identity(), nn.Identity()
    return network


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({}, efficientnet),
        ({"expand_ratio": 4, "group_dim": 16}, partial(efficientnet, 4, 16)),
        (GROUPS, partial(efficientnet, norm=GROUP)),
        ({"conv_padding": "same"}, partial(efficientnet_with, "padding")),
        ({"use_relu": True}, partial(efficientnet_with, "relu")),
        ({"squeeze_excite": False}, partial(efficientnet_with, "gates")),
        ({"top_width": 0}, partial(efficientnet_with, "top")),
        ({"expand_ratio": 1}, partial(efficientnet, 1)),
    ],
    ids=[
        "default",
        "wider groups",
        "group norm",
        "same",
        "relu",
        "no gates",
        "no top",
        "no expansion",
    ],
)
def test_an_efficientnet_matches_plain_torch(options: dict[str, Any], plain: Any):
    check_matches_torch({"model": "efficientnet-cifar", **NO_DROPOUT, **options}, 10, plain())


def mobilenet_v2() -> MobileNetV2:
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
    blocks, inputs = [], 32
    for ratio, outputs, repeats, stride in (*rows, (6, 160, 3, 2), (6, 320, 1, 1)):
        for repeat in range(repeats):
            blocks.append(InvertedV2(inputs, outputs, 1 if repeat else stride, ratio))
            inputs = outputs
    return MobileNetV2(blocks)


def test_a_mobilenet_v2_matches_plain_torch():
    check_matches_torch({"model": "mobilenet", **NO_DROPOUT}, 40, mobilenet_v2())


# Group, hidden, outputs, kernel, stride, inner width of the gate or 0, hard swish.
SMALL = [
    (0, 16, 16, 3, 2, 8, False),
    (1, 72, 24, 3, 2, 0, False),
    (1, 88, 24, 3, 1, 0, False),
    (2, 96, 40, 5, 2, 24, True),
    (2, 240, 40, 5, 1, 64, True),
    (2, 240, 40, 5, 1, 64, True),
    (3, 120, 48, 5, 1, 32, True),
    (3, 144, 48, 5, 1, 40, True),
    (4, 288, 96, 5, 2, 72, True),
    (4, 576, 96, 5, 1, 144, True),
    (4, 576, 96, 5, 1, 144, True),
]
LARGE = [
    (0, 16, 16, 3, 1, 0, False),
    (1, 64, 24, 3, 2, 0, False),
    (1, 72, 24, 3, 1, 0, False),
    (2, 72, 40, 5, 2, 24, False),
    (2, 120, 40, 5, 1, 32, False),
    (2, 120, 40, 5, 1, 32, False),
    (3, 240, 80, 3, 2, 0, True),
    (3, 200, 80, 3, 1, 0, True),
    (3, 184, 80, 3, 1, 0, True),
    (3, 184, 80, 3, 1, 0, True),
    (4, 480, 112, 3, 1, 120, True),
    (4, 672, 112, 3, 1, 168, True),
    (5, 672, 160, 5, 2, 168, True),
    (5, 960, 160, 5, 1, 240, True),
    (5, 960, 160, 5, 1, 240, True),
]


def mobilenet_v3(rows: list[Any], last: int, head: int, bias: bool) -> MobileNetV3:
    groups: list[list[nn.Module]] = [[] for _ in range(rows[-1][0] + 1)]
    inputs = 16
    for group, hidden, outputs, kernel, stride, inner, is_hard in rows:
        expand = Conv(inputs, hidden, 1) if hidden != inputs else None
        depthwise = Conv(hidden, hidden, kernel, stride, hidden)
        block = Inverted(expand, depthwise, Conv(hidden, outputs, 1), BATCH)
        block.act = F.hardswish if is_hard else F.relu
        if inner:
            block.se = Gate(hidden, inner, F.relu, F.hardsigmoid)
        groups[group].append(block)
        inputs = outputs
    groups.append([Last(inputs, last)])
    blocks = nn.Sequential(*(nn.Sequential(*item) for item in groups))
    return MobileNetV3(blocks, nn.Conv2d(last, head, 1, bias=bias))


@pytest.mark.parametrize(
    ("model", "plain"),
    [
        ("mobilenet-v3-small", partial(mobilenet_v3, SMALL, 576, 1280, False)),
        ("mobilenet-v3-large", partial(mobilenet_v3, LARGE, 960, 1280, False)),
        ("mobilenet-v3-small-published", partial(mobilenet_v3, SMALL, 576, 1024, True)),
        ("mobilenet-v3-large-published", partial(mobilenet_v3, LARGE, 960, 1280, True)),
    ],
)
def test_a_mobilenet_v3_matches_plain_torch(model: str, plain: Any):
    check_matches_torch({"model": model, **NO_DROPOUT}, 40, plain())


@pytest.mark.parametrize("bypass", [False, True])
def test_a_squeezenet_matches_plain_torch(bypass: bool):
    options = {"model": "squeezenet", "use_bypass": bypass, **NO_DROPOUT}

    check_matches_torch(options, 47, SqueezeNet(bypass))
