"""Dropout and stochastic depth: a function of seed, layer, update, micro-batch and place."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from support.model_families import RANDOM
from support.networks import images_and_labels
from torch import Tensor, nn

from convoy.layers.build import build_layers
from convoy.layers.dropout import Dropout, DropoutRng, DropPath
from convoy.parallel.slice import RecomputedSlice, Slice
from convoy.rng import StepPosition, key, uniform

Kind = type[Dropout] | type[DropPath]
KINDS = pytest.mark.parametrize("kind", [Dropout, DropPath])
ONES = torch.ones(64, 3, 4, 4)


def layer(
    kind: Kind, number: int = 0, name: str = "one", seed: int = 0, rate: float = 0.5
) -> nn.Module:
    """At one of the micro-batches of updates of four."""
    return kind(rate, DropoutRng(seed, name, StepPosition(range(4), current=number)))


def run_layer(module: nn.Module, inputs: Tensor = ONES) -> Tensor:
    out: Tensor = module.train()(inputs)
    return out


@KINDS
def test_the_same_step_position_has_the_same_mask(kind: Kind):
    assert torch.equal(run_layer(layer(kind, 5)), run_layer(layer(kind, 5)))


@KINDS
@pytest.mark.parametrize(
    "other",
    [
        {"number": 1},  # the same micro-batch of the update before
        {"number": 9},  # and of the one after
        {"number": 6},  # the next of the update
        {"name": "two"},
        {"seed": 1},
    ],
)
def test_masks_depend_on_step_position_layer_and_seed(kind: Kind, other: dict[str, int]):
    changed = layer(kind, **{"number": 5, **other})  # type: ignore[arg-type]  # a name is a word

    assert not torch.equal(run_layer(layer(kind, 5)), run_layer(changed))


def test_replicas_draw_masks_by_global_micro_batch():
    alone, second = StepPosition(range(4)), StepPosition(range(2, 4))
    alone.current, second.current = 4 + 3, 2 + 1  # the fourth micro-batch of the second update
    draws = [Dropout(0.5, DropoutRng(0, "one", position)) for position in (alone, second)]

    assert torch.equal(run_layer(draws[0]), run_layer(draws[1]))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_dropout_drops_the_configured_fraction_and_scales_the_rest(rate: float):
    out = run_layer(layer(Dropout, rate=rate), torch.ones(40_000, 1))

    assert float((out == 0).float().mean()) == pytest.approx(rate, abs=0.01)
    torch.testing.assert_close(out.max(), torch.tensor(1 / (1 - rate)))
    assert out.unique().numel() == 2


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_drop_path_drops_the_configured_fraction_and_scales_the_rest(rate: float):
    out = run_layer(layer(DropPath, rate=rate), torch.ones(20_000, 2, 1, 2)).flatten(1)

    assert bool((out == out[:, :1]).all())  # all of a sample, or nothing
    assert float((out == 0).float().mean()) == pytest.approx(rate, abs=0.02)
    torch.testing.assert_close(out.max(), torch.tensor(1 / (1 - rate)))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
@KINDS
def test_the_mask_follows_the_documented_formula(kind: Kind, rate: float):
    """x · [u ≥ rate] ÷ (1 − rate) in 64 bits, with a draw for each element or each sample."""
    inputs = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    count = inputs.numel() if kind is Dropout else len(inputs)
    samples = uniform(key(0, "dropout", "one"), 1, 1, np.arange(count))  # of pass 5 in updates of 4
    shape = inputs.shape if kind is Dropout else (6, 1, 1, 1)
    expected = inputs.double().numpy() * (samples >= rate).reshape(shape) / (1 - rate)
    found = run_layer(layer(kind, 5, rate=rate), inputs)

    np.testing.assert_allclose(found.double().numpy(), expected, rtol=2e-7)


@KINDS
def test_dropout_preserves_the_mean(kind: Kind):
    out = run_layer(layer(kind, rate=0.3), torch.ones(20_000, 2, 1, 1)).double()
    deviation = math.sqrt(0.3 / 0.7)  # of one draw
    draws = out.numel() if kind is Dropout else len(out)

    assert abs(float(out.mean()) - 1) < 5 * deviation / math.sqrt(draws)


def test_elements_are_dropped_independently():
    checkpoints = run_layer(layer(Dropout), torch.ones(64, 64)) != 0

    assert not bool((checkpoints == checkpoints[:1]).all(0).any())
    assert not bool((checkpoints == checkpoints[:, :1]).all(1).any())


def test_a_rate_of_one_drops_everything():
    assert not run_layer(layer(Dropout, rate=1.0)).any()


@KINDS
@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_dropout_is_off_in_eval_mode(kind: Kind, rate: float):
    assert layer(kind, rate=rate).eval()(ONES) is ONES


@KINDS
def test_a_rate_of_zero_drops_nothing(kind: Kind):
    assert run_layer(layer(kind, rate=0.0)) is ONES


@KINDS
def test_masks_do_not_depend_on_the_strides(kind: Kind):
    images = torch.randn(ONES.shape, generator=torch.Generator().manual_seed(0))
    together = images.to(memory_format=torch.channels_last)

    assert torch.equal(run_layer(layer(kind), images), run_layer(layer(kind), together))


@KINDS
def test_the_gradient_has_the_mask_of_the_forward_pass(kind: Kind):
    inputs = ONES.clone().requires_grad_()
    out = run_layer(layer(kind), inputs)
    out.sum().backward()

    assert inputs.grad is not None and torch.equal(inputs.grad, out.detach())


def gradients(name: str, checkpoints: tuple[str, ...] | None) -> dict[str, Tensor]:
    """Of two micro-batches forward, then both backward, the younger one first."""
    position = StepPosition(range(2))
    layers, size = RANDOM[name].plan.layers, RANDOM[name].size
    network = Slice(layers, build_layers(layers, 1, position), position)
    module = network if checkpoints is None else RecomputedSlice(network, checkpoints, nullcontext)
    passes = [module.train()(images_and_labels(2, size, seed)[0])[0] for seed in range(2)]
    for out in reversed(passes):
        out.square().sum().backward()
    return {n: item.grad for n, item in network.named_weights().items() if item.grad is not None}


@pytest.mark.parametrize("checkpoints", [(), ("blocks/3/0/conv_pwl", "fire4/relu", "pool8")])
@pytest.mark.parametrize("name", RANDOM)
def test_a_recomputed_pass_has_the_same_mask(name: str, checkpoints: tuple[str, ...]):
    plain, again = gradients(name, None), gradients(name, checkpoints)

    assert plain.keys() == again.keys() and len(plain) > 20
    assert all(torch.equal(plain[item], again[item]) for item in plain)


def test_a_slice_only_counts_training_micro_batches():
    position = StepPosition(range(2))
    layers, size = RANDOM["squeezenet with dropout"].plan.layers, 31
    network = Slice(layers, build_layers(layers, 1, position), position)
    images, _ = images_and_labels(2, size)
    first = network.train()(images)[0]
    outputs = [network.eval()(images)[0] for _ in range(2)]
    second = network.train()(images)[0]

    assert (position.num_entered, position.update, position.micro) == (2, 0, 1)
    assert torch.equal(*outputs)
    assert not torch.equal(first, second)


@KINDS
def test_a_frozen_layer_drops_nothing(kind: Kind):
    module = layer(kind)
    module.frozen = True

    assert torch.equal(run_layer(module), ONES)
