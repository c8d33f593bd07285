"""Batch statistics over real processes: one replica's training, whatever the order of work."""

from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pytest
from support.pipelines import Case, PipelinePool, pipeline_pool, starts_of
from support.sync_norm_processes import Arrays, NormSyncCase, gather, train

from convoy.planning.topology import BatchPlan

pytestmark = pytest.mark.processes

SMALL = {"size": 8, "samples": 4}
TWO_STAGES = starts_of(Case(), "layer2/0/conv2")  # inside a block


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelinePool]:
    with pipeline_pool(2, tmp_path_factory.mktemp("two")) as output:
        yield output


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelinePool]:
    with pipeline_pool(4, tmp_path_factory.mktemp("four")) as output:
        yield output


@pytest.fixture(scope="module")
def plain(two: PipelinePool) -> Arrays:
    """Two replicas of one stage, nothing computed again."""
    first, second = two.run(train, of_two())
    assert same(first, second)
    return first


def of_two(**words: Any) -> NormSyncCase:
    return NormSyncCase(Case(**SMALL, **words), BatchPlan(4, 4, 2, bn_span=2))


@cache
def one_replica(spanned: NormSyncCase) -> Arrays:
    return train(None, spanned.larger())


def same(one: Arrays, two: Arrays) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


def apart(one: Arrays, two: Arrays) -> float:
    """The largest difference, relative to the largest value of its tensor."""
    assert one.keys() == two.keys()
    return max(float(np.abs(one[name] - two[name]).max() / np.abs(two[name]).max()) for name in one)


def test_gathered_tensors_are_in_replica_order(four: PipelinePool):
    sizes = [(2, 1 + 37 * number % 500) for number in range(40)]
    seen = four.run(gather, sizes)

    assert seen == [[[100.0 * n + place for place in range(4)] for n in range(40)]] * 4


def test_two_replicas_train_as_one_with_larger_micro_batches(plain: Arrays):
    """StageResult was 1e-6 after three updates, statistics included."""

    assert apart(plain, one_replica(of_two())) < 1e-4


@pytest.mark.parametrize("span", [2, 4])
@pytest.mark.parametrize("recompute", [None, ()], ids=["kept", "recomputed"])
def test_four_replicas_train_as_one_with_larger_micro_batches(
    four: PipelinePool, span: int, recompute: tuple[str, ...] | None
):
    """StageResult were 1e-6 for two spans of two and 2e-6 for one of four."""
    spanned = NormSyncCase(Case(**SMALL, recompute=recompute), BatchPlan(4, 2, 4, span))
    first, *others = four.run(train, spanned)

    assert all(same(first, other) for other in others)
    assert apart(first, one_replica(spanned)) < 1e-4


def test_without_a_span_the_results_differ(two: PipelinePool):
    alone = NormSyncCase(Case(**SMALL), BatchPlan(4, 4, 2))
    first, _ = two.run(train, alone)

    assert apart(first, one_replica(of_two())) > 1e-2


@pytest.mark.parametrize("points", [(), (r"layer\d/\d/relu",), (".*",)], ids=str)
def test_recomputation_changes_no_bit(two: PipelinePool, plain: Arrays, points: tuple[str, ...]):
    ended = two.run(train, of_two(recompute=points))

    assert all(same(item, plain) for item in ended)


@pytest.mark.parametrize("schedule", ["grouped", "interleaved", "sequential"])
@pytest.mark.parametrize("recompute", [None, ()], ids=["kept", "recomputed"])
def test_stages_and_schedules_change_no_bit(
    four: PipelinePool, plain: Arrays, schedule: str, recompute: tuple[str, ...] | None
):
    """Several micro-batches are between forward and backward."""
    staged = of_two(starts=TWO_STAGES, schedule=schedule, recompute=recompute)
    ended = four.run(train, staged)
    replicas = [
        dict(chain(*(item.items() for item in ended[index : index + 2]))) for index in (0, 2)
    ]

    assert all(same(replica, plain) for replica in replicas)
