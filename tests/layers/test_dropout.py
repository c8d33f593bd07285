"""Dropout and stochastic depth depend only on seed, layer, update, micro-batch and index."""

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
    """A layer at the given micro-batch; updates have four micro-batches."""
    return kind(rate, DropoutRng(seed, name, StepPosition(range(4), current=number)))


def run_layer(module: nn.Module, inputs: Tensor = ONES) -> Tensor:
    outputs: Tensor = module.train()(inputs)
    return outputs


@KINDS
def test_the_same_step_position_has_the_same_mask(kind: Kind):
    assert torch.equal(run_layer(layer(kind, 5)), run_layer(layer(kind, 5)))


@KINDS
@pytest.mark.parametrize(
    "other",
    [
        {"number": 1},  # the same micro-batch of the previous update
        {"number": 9},  # the same micro-batch of the next update
        {"number": 6},  # the next micro-batch
        {"name": "two"},
        {"seed": 1},
    ],
)
def test_masks_depend_on_step_position_layer_and_seed(kind: Kind, other: dict[str, int]):
    changed = layer(kind, **{"number": 5, **other})  # type: ignore[arg-type]

    assert not torch.equal(run_layer(layer(kind, 5)), run_layer(changed))


def test_replicas_draw_masks_by_global_micro_batch():
    single, second = StepPosition(range(4)), StepPosition(range(2, 4))
    single.current, second.current = 4 + 3, 2 + 1  # the fourth micro-batch of the second update
    layers = [Dropout(0.5, DropoutRng(0, "one", position)) for position in (single, second)]

    assert torch.equal(run_layer(layers[0]), run_layer(layers[1]))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_dropout_drops_the_configured_fraction_and_scales_the_rest(rate: float):
    outputs = run_layer(layer(Dropout, rate=rate), torch.ones(40_000, 1))

    assert float((outputs == 0).float().mean()) == pytest.approx(rate, abs=0.01)
    torch.testing.assert_close(outputs.max(), torch.tensor(1 / (1 - rate)))
    assert outputs.unique().numel() == 2


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_drop_path_drops_the_configured_fraction_and_scales_the_rest(rate: float):
    outputs = run_layer(layer(DropPath, rate=rate), torch.ones(20_000, 2, 1, 2)).flatten(1)

    assert bool((outputs == outputs[:, :1]).all())  # a sample is dropped completely or not at all
    assert float((outputs == 0).float().mean()) == pytest.approx(rate, abs=0.02)
    torch.testing.assert_close(outputs.max(), torch.tensor(1 / (1 - rate)))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
@KINDS
def test_the_mask_follows_the_documented_formula(kind: Kind, rate: float):
    """x · [u ≥ rate] ÷ (1 − rate) in float64, with one draw per element or per sample."""
    inputs = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    count = inputs.numel() if kind is Dropout else len(inputs)
    samples = uniform(key(0, "dropout", "one"), 1, 1, np.arange(count))  # update 1, micro-batch 1
    shape = inputs.shape if kind is Dropout else (6, 1, 1, 1)
    expected = inputs.double().numpy() * (samples >= rate).reshape(shape) / (1 - rate)
    found = run_layer(layer(kind, 5, rate=rate), inputs)

    np.testing.assert_allclose(found.double().numpy(), expected, rtol=2e-7)


@KINDS
def test_dropout_preserves_the_mean(kind: Kind):
    outputs = run_layer(layer(kind, rate=0.3), torch.ones(20_000, 2, 1, 1)).double()
    deviation = math.sqrt(0.3 / 0.7)  # of a single draw
    draws = outputs.numel() if kind is Dropout else len(outputs)

    assert abs(float(outputs.mean()) - 1) < 5 * deviation / math.sqrt(draws)


def test_elements_are_dropped_independently():
    mask = run_layer(layer(Dropout), torch.ones(64, 64)) != 0

    assert not bool((mask == mask[:1]).all(0).any())
    assert not bool((mask == mask[:, :1]).all(1).any())


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
    channels_last = images.to(memory_format=torch.channels_last)

    assert torch.equal(run_layer(layer(kind), images), run_layer(layer(kind), channels_last))


@KINDS
def test_the_gradient_has_the_mask_of_the_forward_pass(kind: Kind):
    inputs = ONES.clone().requires_grad_()
    outputs = run_layer(layer(kind), inputs)
    outputs.sum().backward()

    assert inputs.grad is not None and torch.equal(inputs.grad, outputs.detach())


def gradients(name: str, checkpoints: tuple[str, ...] | None) -> dict[str, Tensor]:
    """Two micro-batches forward, then both backward in reverse order."""
    position = StepPosition(range(2))
    layers, size = RANDOM[name].plan.layers, RANDOM[name].size
    network = Slice(layers, build_layers(layers, 1, position), position)
    module = network if checkpoints is None else RecomputedSlice(network, checkpoints, nullcontext)
    passes = [module.train()(images_and_labels(2, size, seed)[0])[0] for seed in range(2)]
    for outputs in reversed(passes):
        outputs.square().sum().backward()
    return {n: item.grad for n, item in network.named_weights().items() if item.grad is not None}


@pytest.mark.parametrize("checkpoints", [(), ("blocks/3/0/conv_pwl", "fire4/relu", "pool8")])
@pytest.mark.parametrize("name", RANDOM)
def test_a_recomputed_pass_has_the_same_mask(name: str, checkpoints: tuple[str, ...]):
    plain, recomputed = gradients(name, None), gradients(name, checkpoints)

    assert plain.keys() == recomputed.keys() and len(plain) > 20
    assert all(torch.equal(plain[item], recomputed[item]) for item in plain)


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
