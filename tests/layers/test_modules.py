"""The small layers and their paddings, each against the plainest way to say it."""

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
    Squeeze,
    conv,
    max_pool,
    one_way,
)
from convoy.models.layers import ConvSpec, MaxPoolSpec, Shape


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def windows(given: Tensor, kernel: int, stride: int, outside: float) -> Tensor:
    """As TensorFlow's `same` has them, one by one: (samples, channels, rows, columns, pixels)."""
    size = given.shape[-1]
    made = math.ceil(size / stride)
    missing = max((made - 1) * stride + kernel - size, 0)
    rows = []
    for row in range(made):
        columns = []
        for column in range(made):
            pixels = [
                given[:, :, y, x]
                if 0 <= y < size and 0 <= x < size
                else torch.full_like(given[:, :, 0, 0], outside)
                for y in range(row * stride - missing // 2, row * stride - missing // 2 + kernel)
                for x in range(
                    column * stride - missing // 2, column * stride - missing // 2 + kernel
                )
            ]
            columns.append(torch.stack(pixels, -1))
        rows.append(torch.stack(columns, 2))
    return torch.stack(rows, 2)


SIDES = pytest.mark.parametrize("size", [1, 2, 5, 6, 7])


@SIDES
@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
def test_same_padding_of_a_strided_convolution_puts_the_odd_pixel_at_the_far_end(
    kernel: int, size: int
):
    planned = ConvSpec(4, 6, kernel, 2, bias=True, groups=2, padding="same")
    module, given = conv(planned), noise(2, 4, size, size)
    seen = windows(given, kernel, 2, 0.0)
    weight, bias = module.weight.detach().flatten(2), module.get_parameter("bias").detach()
    halves = [
        torch.einsum("ncyxp,ocp->noyx", seen[:, part], weight[outputs])
        for part, outputs in ((slice(0, 2), slice(0, 3)), (slice(2, 4), slice(3, 6)))
    ]
    expected = torch.cat(halves, 1) + bias.view(-1, 1, 1)
    made = module(given).detach()

    assert made.shape[-1] == planned.shape(Shape(4, size)).size
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_without_a_stride_both_paddings_are_one(kernel: int):
    given = noise(2, 4, 6, 6)
    same, symmetric = (conv(ConvSpec(4, 6, kernel, padding=one)) for one in ("same", "symmetric"))
    symmetric.load_state_dict(same.state_dict())

    assert torch.equal(same(given), symmetric(given))


@SIDES
def test_same_padding_of_a_pool_never_wins(size: int):
    given = noise(2, 3, size, size) - 10
    made = max_pool("same")(given)

    assert torch.equal(made, windows(given, 3, 2, -math.inf).amax(-1))
    assert made.shape[-1] == MaxPoolSpec("same").shape(Shape(3, size)).size


@pytest.mark.parametrize(("padding", "pixels"), [("symmetric", 1), ("none", 0)])
@pytest.mark.parametrize("size", [3, 4, 7, 8])
def test_other_pools_are_torchs(padding: str, pixels: int, size: int):
    given = noise(2, 3, size, size) - 10
    made = max_pool(padding)(given)

    assert torch.equal(made, F.max_pool2d(given, 3, 2, pixels))
    assert made.shape[-1] == MaxPoolSpec(padding).shape(Shape(3, size)).size


def test_a_gate_scales_each_channel_of_the_side_road():
    given, gate = noise(2, 3, 4, 4), noise(2, 3, 1, 1, seed=1)

    assert torch.equal(Multiply()(given, gate), given * gate)


def test_the_side_roads_channels_come_last():
    main, side = noise(2, 3, 4, 4), noise(2, 5, 4, 4, seed=1)
    made = Concat()(main, side)

    assert torch.equal(made[:, :3], main) and torch.equal(made[:, 3:], side)


def test_a_squeezed_image_stays_an_image():
    given = noise(2, 3, 4, 4)

    assert Squeeze()(given).shape == (2, 3, 1, 1)
    assert torch.equal(Squeeze()(given).flatten(1), GlobalPool()(given))


def test_activations_are_the_functions_of_their_names():
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
    for name, made in expected.items():
        torch.testing.assert_close(ACTIVATIONS[name]()(x.clone()), made, msg=name)


def test_a_single_pixel_lies_in_one_way_and_a_larger_image_is_left_alone():
    pixel = torch.empty_strided((2, 3, 1, 1), (3, 1, 3, 3)).copy_(noise(2, 3, 1, 1))
    image = noise(2, 3, 2, 2)

    assert one_way(image) is image
    assert one_way(pixel).stride() == (3, 1, 1, 1)
    assert torch.equal(one_way(pixel), pixel)
