"""Every update rule: a part at a time, in numbers of fewer bits, in a file, saved and loaded."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Barrier

import pytest
import torch
from support.small_weights import flattened, noise, weights
from torch import Tensor, nn

from convoy.config.sections.training import OptimizerConfig
from convoy.numerics.flat import FlatParameters
from convoy.numerics.precision import FLOAT_FORMATS, DtypePolicy
from convoy.optim.optimizer import MmapStorage, Optimizer, OptimizerShard, StateStorage
from convoy.optim.update_rules import StepContext, UpdateRule, make_update_rule

OPTIMIZERS = ("sgd", "sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars")


def rule(optimizer: str) -> UpdateRule:
    config = OptimizerConfig(optimizer=optimizer, weight_decay=0.05, optimizer_eps=0.02)
    return make_update_rule(config, 64, ["conv.weight", "fc.weight"])


def make_optimizer(
    optimizer: str, state: str = "float32", storage: StateStorage | None = None
) -> Optimizer:
    flat = FlatParameters(weights())
    return Optimizer(
        flat, rule(optimizer), storage=storage, policy=DtypePolicy(state=FLOAT_FORMATS[state])
    )


def run_updates(optimizer: Optimizer, updates: range) -> None:
    for update in updates:
        optimizer.step(flattened(optimizer, update), StepContext(0.1, update, update))


def ranges(elements: int, cuts: list[int]) -> list[range]:
    return [range(first, last) for first, last in pairwise([0, *cuts, elements])]


class ThreadGather:
    """Owners that wait for each other, as replicas do: each brings its rows, and gets all."""

    def __init__(self, owners: int) -> None:
        self.rows = [torch.empty(0)] * owners
        self.all_there = Barrier(owners, timeout=300)

    def complete(self, owner: int, rows: Tensor) -> Tensor:
        self.rows[owner] = rows
        self.all_there.wait()
        whole = torch.cat(self.rows)
        self.all_there.wait()
        return whole


CUTS = [[16], [112, 144], [0, 0, 160], [48, 128, 160], list(range(16, 176, 16))]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_shards_have_the_bits_of_the_full_vector(cuts: list[int], optimizer: str) -> None:
    whole, parts = make_optimizer(optimizer), FlatParameters(weights())
    owned = ranges(parts.elements, cuts)
    meeting = ThreadGather(len(owned))
    owners = [
        Optimizer(parts, rule(optimizer), OptimizerShard(one, partial(meeting.complete, number)))
        for number, one in enumerate(owned)
    ]
    with ThreadPoolExecutor(len(owners)) as threads:
        for update in range(3):
            at = StepContext(0.1, update, update, 3.0, 2.0)
            gradient = flattened(whole, update, 3.0)
            shares = [gradient[one.start : one.stop].clone() for one in owned]
            moves = [
                threads.submit(owner.step, share, at)
                for owner, share in zip(owners, shares, strict=True)
            ]
            for move in moves:
                move.result()
            whole.step(gradient, at)

    assert torch.equal(parts.values, whole.flat_params.values)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_sharding_of_a_long_vector_changes_a_bit(optimizer: str) -> None:
    """Blocks of all lengths: torch takes the last elements of a vector another way."""
    elements = 16 * 64
    gradient = noise((elements,), 1)

    def after(cuts: list[int]) -> Tensor:
        flat = FlatParameters({"plain": nn.Parameter(noise((elements, 1), 0))})
        for owned in ranges(elements, cuts):
            owner = Optimizer(flat, rule(optimizer), OptimizerShard(owned))
            for update in range(3):
                owner.step(
                    gradient[owned.start : owned.stop].clone(), StepContext(0.1, update, update)
                )
        return flat.values

    expected = after([])

    assert all(torch.equal(after([cut]), expected) for cut in range(16, elements, 16))
    assert torch.equal(after(list(range(16, elements, 16))), expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_padding_stays_zero_during_updates(optimizer: str) -> None:
    one = make_optimizer(optimizer)
    run_updates(one, range(3))
    for view in one.flat_params.views(one.flat_params.values):
        view.zero_()

    assert not one.flat_params.values.any()


@pytest.mark.parametrize("state", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_saved_and_loaded_state_continues_with_the_same_bits(optimizer: str, state: str) -> None:
    first = make_optimizer(optimizer, state)
    run_updates(first, range(3))
    named = first.named_state()
    second = make_optimizer(optimizer, state)
    second.load_state({name: one.clone() for name, one in named.items()})
    second.load_weights(
        {name: one.detach().clone() for name, one in first.flat_params.weights.items()}
    )
    for one in (first, second):
        run_updates(one, range(3, 6))

    assert torch.equal(first.flat_params.values, second.flat_params.values)
    assert {one.dtype for one in named.values()} == {FLOAT_FORMATS[state].dtype}
    assert {one.dtype for one in first.slots.values()} == {FLOAT_FORMATS[state].dtype}


@pytest.mark.parametrize("state", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_state_in_a_file_gives_the_same_bits(optimizer: str, state: str, tmp_path: Path) -> None:
    kept, mapped = (
        make_optimizer(optimizer, state),
        make_optimizer(optimizer, state, MmapStorage(tmp_path)),
    )
    for one in (kept, mapped):
        run_updates(one, range(4))

    assert torch.equal(kept.flat_params.values, mapped.flat_params.values)


def test_16_bit_state_is_rounded_at_the_end_of_an_update() -> None:
    one = make_optimizer("sgd", "bfloat16")
    gradient = flattened(one, 0)
    expected = one.flat_params.values * 0.05
    expected[one.flat_params.decayed_elements :] = 0
    expected += gradient
    one.step(gradient, StepContext(0.0))

    assert torch.equal(one.slots["velocity"], expected.to(torch.bfloat16))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_frozen_weight_has_its_initial_state_and_does_not_change(optimizer: str) -> None:
    named = weights()
    named["conv.weight"].requires_grad_(False)
    before = named["conv.weight"].clone()
    one = Optimizer(FlatParameters(named), rule(optimizer))
    one.step(torch.ones(one.flat_params.elements), StepContext(0.5))
    firsts = one.rule.slots
    make_optimizer(optimizer).load_state(one.named_state())

    assert torch.equal(named["conv.weight"], before)
    assert all(
        (one.named_state()[f"conv.weight/{slot}"] == first).all() for slot, first in firsts.items()
    )
