"""Emulated 16-bit arithmetic: activations and gradients between layers are 16-bit values."""

import pytest
import torch
import torch.nn.functional as F
from support.model_families import ALL
from support.networks import images_and_labels
from torch import Tensor

from convoy.layers.build import build_layers
from convoy.numerics.precision import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    Arithmetic,
    FloatFormat,
    needs_rounding,
)
from convoy.parallel.slice import Slice

CPU = torch.device("cpu")
HALF_FORMATS = [FLOAT16, BFLOAT16]
NAMES = ["resnet8 A", "resnet8 strided groups", "efficientnet", "efficientnet with proxy norm"]


def make_network(name: str, arithmetic: Arithmetic) -> Slice:
    layers = ALL[name].plan.layers
    network = Slice(layers, build_layers(layers, seed=3))
    network.set_arithmetic(arithmetic, rounds_input=True)
    return network


def _record_gradient(output: Tensor, gradients: list[Tensor]) -> None:
    output.register_hook(lambda gradient: gradients.append(gradient.clone()))


def is_representable(float_format: FloatFormat, values: Tensor) -> bool:
    return torch.equal(float_format.round_nearest(values), values)


@pytest.mark.parametrize("float_format", HALF_FORMATS, ids=lambda item: item.name)
@pytest.mark.parametrize("name", NAMES)
def test_every_layer_gets_16_bit_values_forward_and_backward(name: str, float_format: FloatFormat):
    network = make_network(name, Arithmetic(float_format))
    values: list[Tensor] = []
    for layer in ALL[name].plan.layers:
        item = network.layers[layer.name]
        item.register_forward_pre_hook(lambda _, args: values.extend(arg.clone() for arg in args))
        if needs_rounding(layer.operation):
            item.register_forward_hook(lambda _, __, output: _record_gradient(output, values))
    images, labels = images_and_labels(4, ALL[name].size)
    (logits,) = network.train()(images)
    F.cross_entropy(logits, labels).backward()

    assert len(values) > 1.5 * len(network.layers)
    assert is_representable(float_format, logits.detach())
    assert all(is_representable(float_format, item.detach()) for item in values)


def test_a_convolution_and_its_gradient_are_rounded_once():
    """The layer computes in fp32, and its output is rounded."""
    round_value = Arithmetic(FLOAT16).round
    rng = torch.Generator().manual_seed(1)
    values = torch.randn(2, 8, 5, 5, generator=rng, requires_grad=True)
    weight, grad_output = torch.randn(4, 8, 3, 3, generator=rng), torch.randn(2, 4, 3, 3)
    output = round_value(F.conv2d(values, weight))
    output.backward(grad_output)
    rounded = grad_output.half().float()
    expected = F.conv_transpose2d(rounded, weight)

    assert torch.equal(output, F.conv2d(values, weight).half().float())
    torch.testing.assert_close(values.grad, expected)


def test_an_overflowing_gradient_is_infinite_or_saturated():
    values = torch.ones(2, requires_grad=True)
    for saturates, largest in ((False, torch.inf), (True, 65504.0)):
        values.grad = None
        Arithmetic(FLOAT16, saturates=saturates).round(values).backward(torch.tensor([1e6, 2.0]))

        assert values.grad is not None
        assert values.grad.tolist() == [largest, 2.0]


def test_native_gradients_are_saturated():
    values = torch.ones(2, requires_grad=True)
    grad_output = torch.tensor([torch.inf, 2.0], dtype=torch.float16)
    Arithmetic(FLOAT16, native=True, saturates=True).round(values * 1).backward(grad_output)

    assert values.grad is not None
    assert values.grad.tolist() == [65504.0, 2.0]


def test_fp32_arithmetic_changes_nothing():
    values = torch.randn(3)

    assert Arithmetic(FLOAT32).round(values) is values
    assert Arithmetic(FLOAT32, native=True).cast_inputs((values,))[0] is values


@pytest.mark.parametrize("name", NAMES)
def test_native_and_emulated_arithmetic_agree(name: str):
    """The difference is at most twice the rounding error of 16 bits."""
    images, _ = images_and_labels(4, ALL[name].size)
    emulated, native, full = (
        make_network(name, item)(images)[0].detach()
        for item in (Arithmetic(FLOAT16), Arithmetic(FLOAT16, native=True), Arithmetic())
    )
    error = (emulated - full).abs().max()

    assert native.dtype == torch.float32
    assert is_representable(FLOAT16, native)
    assert (native - emulated).abs().max() <= 2 * error
    assert error > 0


def test_partial_sums_are_rounded_after_every_16_channels():
    rng = torch.Generator().manual_seed(2)
    values = torch.randn(3, 40, 6, 6, generator=rng)
    weight, bias = torch.randn(5, 40, 3, 3, generator=rng), torch.randn(5, generator=rng)
    arithmetic = Arithmetic(FLOAT16, half_partials=True)
    with arithmetic.context(CPU):
        output = F.conv2d(values, weight, bias, 1, 1)
    total = torch.zeros(3, 5, 6, 6)
    for first in (0, 16, 32):
        block = slice(first, first + 16)
        part = F.conv2d(values[:, block], weight[:, block], padding=1)
        total = (total + part).half().float()

    assert torch.equal(output, total + bias.view(-1, 1, 1))


@pytest.mark.parametrize("groups", [2, 4, 40])
def test_a_grouped_convolution_has_no_partial_sums(groups: int):
    rng = torch.Generator().manual_seed(2)
    values, bias = torch.randn(3, 40, 6, 6, generator=rng), torch.randn(40, generator=rng)
    weight = torch.randn(40, 40 // groups, 3, 3, generator=rng)
    with Arithmetic(FLOAT16, half_partials=True).context(CPU):
        output = F.conv2d(values, weight, bias, 1, 1, 1, groups)

    assert torch.equal(
        output, F.conv2d(values, weight, None, 1, 1, 1, groups) + bias.view(-1, 1, 1)
    )


def test_partial_sums_of_a_linear_layer_are_rounded():
    rng = torch.Generator().manual_seed(2)
    values, weight = torch.randn(3, 33, generator=rng), torch.randn(7, 33, generator=rng)
    with Arithmetic(BFLOAT16, half_partials=True).context(CPU):
        output = F.linear(values, weight)
    total = torch.zeros(3, 7)
    for first in (0, 16, 32):
        block = slice(first, first + 16)
        total = (total + values[:, block] @ weight[:, block].T).bfloat16().float()

    torch.testing.assert_close(output, total, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside torch
@pytest.mark.parametrize("float_format", HALF_FORMATS, ids=lambda item: item.name)
def test_a_compiled_function_rounds(float_format: FloatFormat):
    """The compiler of torch would remove a cast and its inverse."""
    round_value = Arithmetic(float_format).round
    compiled = torch.compile(lambda values: round_value(values + 0.001) + 0.0)
    values = torch.randn(100, requires_grad=True)
    output = compiled(values)
    output.backward(torch.randn(100))

    assert is_representable(float_format, output.detach())
    assert values.grad is not None
    assert is_representable(float_format, values.grad)
