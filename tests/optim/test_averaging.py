"""The average that follows every update: against 64-bit numbers, cut anywhere, saved and loaded."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from convoy.config.sections.optimizer import OptimizerConfig
from convoy.numerics.flat import FlatWeights
from convoy.numerics.kinds import Kind
from convoy.numerics.types import BFLOAT16, FLOAT32
from convoy.optim.averaging import RunningAverage
from convoy.optim.optimizer import BLOCK, Optimizer, Owned
from convoy.optim.rules import Sgd
from convoy.optim.step import Step

SHAPES = {"conv.weight": (9, 7, 3, 3), "bn.weight": (9,), "fc.weight": (5, 9), "fc.bias": (5,)}


def weights() -> dict[str, nn.Parameter]:
    return {
        name: nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
        for seed, (name, shape) in enumerate(SHAPES.items())
    }


def optimizer_of(
    named: dict[str, nn.Parameter], owned: range | None = None, kind: Kind | None = None
) -> Optimizer:
    rule = Sgd(OptimizerConfig(momentum=0.9, weight_decay=0.0))
    part = None if owned is None else Owned(owned)
    return Optimizer(FlatWeights(named), rule, part, kind=kind)


def step(optimizer: Optimizer, update: int) -> None:
    whole = torch.randn(optimizer.flat.elements, generator=torch.Generator().manual_seed(update))
    owned = optimizer.owned
    optimizer.step(whole[owned.start : owned.stop].clone(), Step(0.1))


def as_it_is(optimizer: Optimizer) -> Callable[[Tensor], Tensor]:
    del optimizer
    return lambda part: part


@pytest.mark.parametrize("decay", [0.1, 0.9, 0.999])
def test_fifty_updates_are_the_written_formula(decay: float):
    named, statistic = weights(), torch.zeros(9)
    optimizer = optimizer_of(named)
    average = RunningAverage([optimizer], {"bn.running_mean": statistic}, decay)
    expected: dict[str, np.ndarray] = {}
    for update in range(50):
        step(optimizer, update)
        statistic.add_(update)
        average.follow()
        live = {**named, "bn.running_mean": statistic}
        for name, one in live.items():
            now = one.detach().double().numpy()
            before = expected.get(name)
            expected[name] = now if before is None else decay * before + (1 - decay) * now
    found = average.named(as_it_is)

    assert found.keys() == expected.keys()
    for name, one in found.items():
        np.testing.assert_allclose(one.double().numpy(), expected[name], rtol=2e-6, atol=2e-6)


def test_it_begins_with_the_weights_after_the_first_update():
    named = weights()
    optimizer = optimizer_of(named)
    average = RunningAverage([optimizer], {}, 0.99)

    assert not average.begun
    step(optimizer, 0)
    average.follow()
    assert average.begun
    assert all(torch.equal(one, named[name]) for name, one in average.named(as_it_is).items())


def test_weights_that_rest_are_their_own_average_to_the_bit():
    named = weights()
    optimizer = optimizer_of(named)
    average = RunningAverage([optimizer], {}, 0.9999)
    for _ in range(100):
        average.follow()

    assert all(torch.equal(one, named[name]) for name, one in average.named(as_it_is).items())


def test_a_long_memory_loses_no_share_of_the_weights():
    optimizer = optimizer_of({"w": nn.Parameter(torch.zeros(1, 4))})
    average = RunningAverage([optimizer], {}, 0.9999)
    average.follow()
    optimizer.flat.values.fill_(1.0)
    for _ in range(20_000):
        average.follow()
    # In 64 bits; with 0.9999 and 0.0001 rounded to 32 bits apart it would be off by 3e-4.
    expected = 1 - 0.9999**20_000

    assert float(average.named(as_it_is)["w"][0, 0]) == pytest.approx(expected, abs=5e-5)


def test_owned_ranges_cut_anywhere_make_the_same_bits():
    whole = optimizer_of(weights())
    alone = RunningAverage([whole], {}, 0.97)
    elements = whole.flat.elements
    cuts = [0, 16, 16 * 13, elements]
    parts = [optimizer_of(weights(), range(first, last)) for first, last in pairwise(cuts)]
    averages = [RunningAverage([one], {}, 0.97) for one in parts]
    for update in range(10):
        for optimizer, average in zip([whole, *parts], [alone, *averages], strict=True):
            step(optimizer, update)
            average.follow()
    joined = torch.cat([one._weights[0] for one in averages])

    assert torch.equal(joined, alone._weights[0])


def test_a_vector_of_several_blocks_is_followed_to_its_end():
    optimizer = optimizer_of({"w": nn.Parameter(torch.zeros(3, BLOCK))})
    average = RunningAverage([optimizer], {}, 0.5)
    average.follow()
    optimizer.flat.values.fill_(2.0)
    average.follow()

    assert bool((average.named(as_it_is)["w"] == 1.0).all())


def test_weights_that_are_kept_apart_are_averaged_as_they_are_kept():
    kind = Kind(kept=FLOAT32, used=BFLOAT16)
    optimizer = optimizer_of(weights(), kind=kind)
    average = RunningAverage([optimizer], {}, 0.9)
    step(optimizer, 0)
    average.follow()
    found = average.named(as_it_is)["fc.weight"]
    used = optimizer.flat.named(optimizer.flat.values)["fc.weight"]

    assert torch.equal(found, optimizer.named_masters()["fc.weight"])
    assert not torch.equal(found, used)


def test_a_saved_average_goes_on_as_if_nothing_had_been():
    optimizer, again = optimizer_of(weights()), optimizer_of(weights())
    statistic = torch.ones(9)
    average = RunningAverage([optimizer], {"s": statistic}, 0.9)
    for update in range(3):
        step(optimizer, update)
        average.follow()
    saved = {name: one.clone() for name, one in average.named(as_it_is).items()}
    resumed = RunningAverage([again], {"s": statistic}, 0.9)
    resumed.load(saved)
    again.flat.values.copy_(optimizer.flat.values)
    for one in (average, resumed):
        statistic.fill_(3.0)
        one.follow()
    pairs = zip(average.named(as_it_is).values(), resumed.named(as_it_is).values(), strict=True)

    assert all(torch.equal(one, other) for one, other in pairs)


def test_without_a_saved_average_the_next_update_begins_it():
    optimizer = optimizer_of(weights())
    average = RunningAverage([optimizer], {}, 0.9)
    average.follow()
    average.load({})

    assert not average.begun
