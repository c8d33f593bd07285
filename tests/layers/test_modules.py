"""Small layers and paddings, each against a naive implementation."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.layers.modules import (
    ACTIVATIONS,
    Concat,
    GlobalPool,
    Multiply,
    build_conv,
    build_max_pool,
    canonical_strides,
)
from convoy.models.layers import ConvSpec, MaxPoolSpec, Shape


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def windows(inputs: Tensor, kernel: int, stride: int, padding_value: float) -> Tensor:
    """Windows with TensorFlow's `same` padding: (samples, channels, rows, columns, pixels)."""
    size = inputs.shape[-1]
    outputs = math.ceil(size / stride)
    missing = max((outputs - 1) * stride + kernel - size, 0)
    rows = []
    for row in range(outputs):
        columns = []
        for column in range(outputs):
            pixels = [
                inputs[:, :, y, x]
                if 0 <= y < size and 0 <= x < size
                else torch.full_like(inputs[:, :, 0, 0], padding_value)
                for y in range(row * stride - missing // 2, row * stride - missing // 2 + kernel)
                for x in range(
                    column * stride - missing // 2, column * stride - missing // 2 + kernel
                )
            ]
            columns.append(torch.stack(pixels, -1))
        rows.append(torch.stack(columns, 2))
    return torch.stack(rows, 2)


SIZES = pytest.mark.parametrize("size", [1, 2, 5, 6, 7])


@SIZES
@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
def test_same_padding_puts_the_odd_pixel_at_the_bottom_right(kernel: int, size: int):
    spec = ConvSpec(4, 6, kernel, 2, bias=True, groups=2, padding="same")
    module, inputs = build_conv(spec), noise(2, 4, size, size)
    patches = windows(inputs, kernel, 2, 0.0)
    weight, bias = module.weight.detach().flatten(2), module.get_parameter("bias").detach()
    groups = [
        torch.einsum("ncyxp,ocp->noyx", patches[:, part], weight[outputs])
        for part, outputs in ((slice(0, 2), slice(0, 3)), (slice(2, 4), slice(3, 6)))
    ]
    expected = torch.cat(groups, 1) + bias.view(-1, 1, 1)
    output = module(inputs).detach()

    assert output.shape[-1] == spec.output_shape(Shape(4, size)).size
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_without_a_stride_both_paddings_are_equal(kernel: int):
    inputs = noise(2, 4, 6, 6)
    same, symmetric = (
        build_conv(ConvSpec(4, 6, kernel, padding=item)) for item in ("same", "symmetric")
    )
    symmetric.load_state_dict(same.state_dict())

    assert torch.equal(same(inputs), symmetric(inputs))


@SIZES
def test_same_padding_is_never_the_maximum_of_a_pool(size: int):
    inputs = noise(2, 3, size, size) - 10
    outputs = build_max_pool("same")(inputs)

    assert torch.equal(outputs, windows(inputs, 3, 2, -math.inf).amax(-1))
    assert outputs.shape[-1] == MaxPoolSpec("same").output_shape(Shape(3, size)).size


@pytest.mark.parametrize(("padding", "pixels"), [("symmetric", 1), ("none", 0)])
@pytest.mark.parametrize("size", [3, 4, 7, 8])
def test_other_pools_match_torch(padding: str, pixels: int, size: int):
    inputs = noise(2, 3, size, size) - 10
    outputs = build_max_pool(padding)(inputs)

    assert torch.equal(outputs, F.max_pool2d(inputs, 3, 2, pixels))
    assert outputs.shape[-1] == MaxPoolSpec(padding).output_shape(Shape(3, size)).size


def test_a_gate_scales_each_channel():
    inputs, gate = noise(2, 3, 4, 4), noise(2, 3, 1, 1, seed=1)

    assert torch.equal(Multiply()(inputs, gate), inputs * gate)


def test_concat_appends_the_channels_of_the_side_branch():
    main, side = noise(2, 3, 4, 4), noise(2, 5, 4, 4, seed=1)
    outputs = Concat()(main, side)

    assert torch.equal(outputs[:, :3], main) and torch.equal(outputs[:, 3:], side)


def test_global_pooling_without_flatten_returns_an_image():
    inputs = noise(2, 3, 4, 4)

    squeeze = GlobalPool(flatten=False)

    assert squeeze(inputs).shape == (2, 3, 1, 1)
    assert torch.equal(squeeze(inputs).flatten(1), GlobalPool()(inputs))


def test_activations_are_the_functions_they_are_named_after():
    x = torch.linspace(-8, 8, 101, dtype=torch.float64)
    expected = {
        "relu": x.clamp(min=0),
        "relu6": x.clamp(0, 6),
        "swish": x / (1 + (-x).exp()),
        "hard_swish": x * (x + 3).clamp(0, 6) / 6,
        "sigmoid": 1 / (1 + (-x).exp()),
        "hard_sigmoid": (x + 3).clamp(0, 6) / 6,
    }

    assert expected.keys() == ACTIVATIONS.keys()
    for name, outputs in expected.items():
        torch.testing.assert_close(ACTIVATIONS[name]()(x.clone()), outputs, msg=name)


def test_canonical_strides_only_change_single_pixels():
    pixel = torch.empty_strided((2, 3, 1, 1), (3, 1, 3, 3)).copy_(noise(2, 3, 1, 1))
    image = noise(2, 3, 2, 2)

    assert canonical_strides(image) is image
    assert canonical_strides(pixel).stride() == (3, 1, 1, 1)
    assert torch.equal(canonical_strides(pixel), pixel)
