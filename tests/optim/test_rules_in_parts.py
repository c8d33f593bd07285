"""Every update rule: sharded, with 16-bit state, with state in a file, saved and loaded."""

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


def ranges(elements: int, boundaries: list[int]) -> list[range]:
    return [range(first, last) for first, last in pairwise([0, *boundaries, elements])]


class ThreadGather:
    """Threads that wait for each other like replicas; each contributes its rows and gets all."""

    def __init__(self, shards: int) -> None:
        self.rows = [torch.empty(0)] * shards
        self.barrier = Barrier(shards, timeout=300)

    def all_gather(self, shard: int, rows: Tensor) -> Tensor:
        self.rows[shard] = rows
        self.barrier.wait()
        full = torch.cat(self.rows)
        self.barrier.wait()
        return full


BOUNDARIES = [[16], [112, 144], [0, 0, 160], [48, 128, 160], list(range(16, 176, 16))]


@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_shards_have_the_bits_of_the_full_vector(boundaries: list[int], optimizer: str) -> None:
    full, parts = make_optimizer(optimizer), FlatParameters(weights())
    shard_ranges = ranges(parts.numel, boundaries)
    gather = ThreadGather(len(shard_ranges))
    shards = [
        Optimizer(parts, rule(optimizer), OptimizerShard(item, partial(gather.all_gather, number)))
        for number, item in enumerate(shard_ranges)
    ]
    with ThreadPoolExecutor(len(shards)) as threads:
        for update in range(3):
            context = StepContext(0.1, update, update, 3.0, 2.0)
            gradient = flattened(full, update, 3.0)
            gradient_parts = [gradient[item.start : item.stop].clone() for item in shard_ranges]
            futures = [
                threads.submit(shard.step, part, context)
                for shard, part in zip(shards, gradient_parts, strict=True)
            ]
            for future in futures:
                future.result()
            full.step(gradient, context)

    assert torch.equal(parts.values, full.flat_params.values)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_sharding_of_a_long_vector_changes_a_bit(optimizer: str) -> None:
    """Vectors of all lengths, because torch computes the last elements with another kernel."""
    elements = 16 * 64
    gradient = noise((elements,), 1)

    def values_after(boundaries: list[int]) -> Tensor:
        flat = FlatParameters({"plain": nn.Parameter(noise((elements, 1), 0))})
        for shard_range in ranges(elements, boundaries):
            shard = Optimizer(flat, rule(optimizer), OptimizerShard(shard_range))
            for update in range(3):
                shard.step(
                    gradient[shard_range.start : shard_range.stop].clone(),
                    StepContext(0.1, update, update),
                )
        return flat.values

    expected = values_after([])

    assert all(
        torch.equal(values_after([boundary]), expected) for boundary in range(16, elements, 16)
    )
    assert torch.equal(values_after(list(range(16, elements, 16))), expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_padding_stays_zero_during_updates(optimizer: str) -> None:
    item = make_optimizer(optimizer)
    run_updates(item, range(3))
    for view in item.flat_params.views(item.flat_params.values):
        view.zero_()

    assert not item.flat_params.values.any()


@pytest.mark.parametrize("state", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_saved_and_loaded_state_continues_with_the_same_bits(optimizer: str, state: str) -> None:
    first = make_optimizer(optimizer, state)
    run_updates(first, range(3))
    named = first.named_state()
    second = make_optimizer(optimizer, state)
    second.load_state({name: item.clone() for name, item in named.items()})
    second.load_weights(
        {name: item.detach().clone() for name, item in first.flat_params.weights.items()}
    )
    for item in (first, second):
        run_updates(item, range(3, 6))

    assert torch.equal(first.flat_params.values, second.flat_params.values)
    assert {item.dtype for item in named.values()} == {FLOAT_FORMATS[state].dtype}
    assert {slot.dtype for slot in first.slots.values()} == {FLOAT_FORMATS[state].dtype}


@pytest.mark.parametrize("state", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_state_in_a_file_gives_the_same_bits(optimizer: str, state: str, tmp_path: Path) -> None:
    in_memory, mapped = (
        make_optimizer(optimizer, state),
        make_optimizer(optimizer, state, MmapStorage(tmp_path)),
    )
    for item in (in_memory, mapped):
        run_updates(item, range(4))

    assert torch.equal(in_memory.flat_params.values, mapped.flat_params.values)


def test_16_bit_state_is_rounded_at_the_end_of_an_update() -> None:
    item = make_optimizer("sgd", "bfloat16")
    gradient = flattened(item, 0)
    expected = item.flat_params.values * 0.05
    expected[item.flat_params.decayed_numel :] = 0
    expected += gradient
    item.step(gradient, StepContext(0.0))

    assert torch.equal(item.slots["velocity"], expected.to(torch.bfloat16))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_frozen_weight_has_its_initial_state_and_does_not_change(optimizer: str) -> None:
    named = weights()
    named["conv.weight"].requires_grad_(False)
    before = named["conv.weight"].clone()
    item = Optimizer(FlatParameters(named), rule(optimizer))
    item.step(torch.ones(item.flat_params.numel), StepContext(0.5))
    initial = item.rule.slots
    make_optimizer(optimizer).load_state(item.named_state())

    assert torch.equal(named["conv.weight"], before)
    assert all(
        (item.named_state()[f"conv.weight/{slot}"] == value).all()
        for slot, value in initial.items()
    )
