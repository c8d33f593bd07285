"""16-bit arithmetic as if: what layers hand on and what comes back are 16-bit numbers."""

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
HALVES = [FLOAT16, BFLOAT16]
NAMES = ["resnet8 A", "resnet8 strided groups", "efficientnet", "efficientnet by proxy"]


def network_of(name: str, arithmetic: Arithmetic) -> Slice:
    layers = ALL[name].plan.layers
    made = Slice(layers, build_layers(layers, seed=3))
    made.set_arithmetic(arithmetic, rounds_input=True)
    return made


def _note_gradient(made: Tensor, given: list[Tensor]) -> None:
    made.register_hook(lambda back: given.append(back.clone()))


def is_of(number: FloatFormat, values: Tensor) -> bool:
    return torch.equal(number.round_nearest(values), values)


@pytest.mark.parametrize("number", HALVES, ids=lambda one: one.name)
@pytest.mark.parametrize("name", NAMES)
def test_every_layer_gets_16_bit_values_forward_and_backward(name: str, number: FloatFormat):
    network = network_of(name, Arithmetic(number))
    given: list[Tensor] = []
    for layer in ALL[name].plan.layers:
        one = network.layers[layer.name]
        one.register_forward_pre_hook(lambda _, args: given.extend(one.clone() for one in args))
        if needs_rounding(layer.operation):
            one.register_forward_hook(lambda _, __, made: _note_gradient(made, given))
    images, labels = images_and_labels(4, ALL[name].size)
    (logits,) = network.train()(images)
    F.cross_entropy(logits, labels).backward()

    assert len(given) > 1.5 * len(network.layers)
    assert is_of(number, logits.detach())
    assert all(is_of(number, one.detach()) for one in given)


def test_a_convolution_and_its_gradient_are_rounded_once():
    """By hand: the layer computes in 32 bits, the rounding stands behind it."""
    after = Arithmetic(FLOAT16).round_output
    chance = torch.Generator().manual_seed(1)
    given = torch.randn(2, 8, 5, 5, generator=chance, requires_grad=True)
    weight, back = torch.randn(4, 8, 3, 3, generator=chance), torch.randn(2, 4, 3, 3)
    made = after(F.conv2d(given, weight))
    made.backward(back)
    rounded_back = back.half().float()
    expected = F.conv_transpose2d(rounded_back, weight)

    assert torch.equal(made, F.conv2d(given, weight).half().float())
    torch.testing.assert_close(given.grad, expected)


def test_an_overflowing_gradient_is_infinite_or_saturated():
    given = torch.ones(2, requires_grad=True)
    for saturates, largest in ((False, torch.inf), (True, 65504.0)):
        given.grad = None
        Arithmetic(FLOAT16, saturates=saturates).round_output(given).backward(
            torch.tensor([1e6, 2.0])
        )

        assert given.grad is not None
        assert given.grad.tolist() == [largest, 2.0]


def test_native_gradients_are_saturated():
    given = torch.ones(2, requires_grad=True)
    back = torch.tensor([torch.inf, 2.0], dtype=torch.float16)
    Arithmetic(FLOAT16, native=True, saturates=True).round_output(given * 1).backward(back)

    assert given.grad is not None
    assert given.grad.tolist() == [65504.0, 2.0]


def test_fp32_arithmetic_changes_nothing():
    given = torch.randn(3)

    assert Arithmetic(FLOAT32).round_output(given) is given
    assert Arithmetic(FLOAT32, native=True).cast_inputs((given,))[0] is given


@pytest.mark.parametrize("name", NAMES)
def test_native_and_emulated_arithmetic_agree(name: str):
    """Each layer may differ by a rounding or two; what 16 bits lose is of the same size."""
    images, _ = images_and_labels(4, ALL[name].size)
    emulated, native, whole = (
        network_of(name, one)(images)[0].detach()
        for one in (Arithmetic(FLOAT16), Arithmetic(FLOAT16, native=True), Arithmetic())
    )
    lost = (emulated - whole).abs().max()

    assert native.dtype == torch.float32
    assert is_of(FLOAT16, native)
    assert (native - emulated).abs().max() <= 2 * lost
    assert lost > 0


def test_partial_sums_are_rounded_after_every_16_channels():
    chance = torch.Generator().manual_seed(2)
    given = torch.randn(3, 40, 6, 6, generator=chance)
    weight, bias = torch.randn(5, 40, 3, 3, generator=chance), torch.randn(5, generator=chance)
    arithmetic = Arithmetic(FLOAT16, half_partials=True)
    with arithmetic.context(CPU):
        made = F.conv2d(given, weight, bias, 1, 1)
    total = torch.zeros(3, 5, 6, 6)
    for first in (0, 16, 32):
        block = slice(first, first + 16)
        part = F.conv2d(given[:, block], weight[:, block], padding=1)
        total = (total + part).half().float()

    assert torch.equal(made, total + bias.view(-1, 1, 1))


def test_partial_sums_of_a_linear_layer_are_rounded():
    chance = torch.Generator().manual_seed(2)
    given, weight = torch.randn(3, 33, generator=chance), torch.randn(7, 33, generator=chance)
    with Arithmetic(BFLOAT16, half_partials=True).context(CPU):
        made = F.linear(given, weight)
    total = torch.zeros(3, 7)
    for first in (0, 16, 32):
        block = slice(first, first + 16)
        total = (total + given[:, block] @ weight[:, block].T).bfloat16().float()

    torch.testing.assert_close(made, total, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch of itself
@pytest.mark.parametrize("number", HALVES, ids=lambda one: one.name)
def test_a_compiled_function_rounds(number: FloatFormat):
    """torch's compiler would take a cast and its way back for nothing."""
    after = Arithmetic(number).round_output
    program = torch.compile(lambda values: after(values + 0.001) + 0.0)
    values = torch.randn(100, requires_grad=True)
    made = program(values)
    made.backward(torch.randn(100))

    assert is_of(number, made.detach())
    assert values.grad is not None
    assert is_of(number, values.grad)
