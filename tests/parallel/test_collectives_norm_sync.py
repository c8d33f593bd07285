"""Synchronized batch norm in real processes trains like one replica with larger micro-batches."""

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
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelinePool]:
    with pipeline_pool(2, tmp_path_factory.mktemp("two")) as pool:
        yield pool


@pytest.fixture(scope="module")
def four_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelinePool]:
    with pipeline_pool(4, tmp_path_factory.mktemp("four")) as pool:
        yield pool


@pytest.fixture(scope="module")
def baseline(two_processes: PipelinePool) -> Arrays:
    """Two replicas of one stage without recomputation."""
    first, second = two_processes.run(train, two_replica_case())
    assert is_equal(first, second)
    return first


def two_replica_case(**options: Any) -> NormSyncCase:
    return NormSyncCase(Case(**SMALL, **options), BatchPlan(4, 4, 2, bn_span=2))


@cache
def train_one_replica(case: NormSyncCase) -> Arrays:
    return train(None, case.larger())


def is_equal(ours: Arrays, theirs: Arrays) -> bool:
    return ours.keys() == theirs.keys() and all(
        np.array_equal(item, theirs[name]) for name, item in ours.items()
    )


def relative_difference(ours: Arrays, theirs: Arrays) -> float:
    """The largest difference, relative to the largest value of its tensor."""
    assert ours.keys() == theirs.keys()
    return max(
        float(np.abs(item - theirs[name]).max() / np.abs(theirs[name]).max())
        for name, item in ours.items()
    )


def test_gathered_tensors_are_in_replica_order(four_processes: PipelinePool):
    sizes = [(2, 1 + 37 * number % 500) for number in range(40)]
    gathered = four_processes.run(gather, sizes)

    assert gathered == [[[100.0 * n + rank for rank in range(4)] for n in range(40)]] * 4


def test_two_replicas_train_as_one_with_larger_micro_batches(baseline: Arrays):
    """The measured difference is 1e-6 after three updates, statistics included."""
    assert relative_difference(baseline, train_one_replica(two_replica_case())) < 1e-4


@pytest.mark.parametrize("span", [2, 4])
@pytest.mark.parametrize("recompute", [None, ()], ids=["stored", "recomputed"])
def test_four_replicas_train_as_one_with_larger_micro_batches(
    four_processes: PipelinePool, span: int, recompute: tuple[str, ...] | None
):
    """The measured difference is 1e-6 for two spans of two and 2e-6 for one of four."""
    case = NormSyncCase(Case(**SMALL, recompute=recompute), BatchPlan(4, 2, 4, span))
    first, *others = four_processes.run(train, case)

    assert all(is_equal(first, other) for other in others)
    assert relative_difference(first, train_one_replica(case)) < 1e-4


def test_without_a_span_the_results_differ(two_processes: PipelinePool):
    independent = NormSyncCase(Case(**SMALL), BatchPlan(4, 4, 2))
    first, _ = two_processes.run(train, independent)

    assert relative_difference(first, train_one_replica(two_replica_case())) > 1e-2


@pytest.mark.parametrize("points", [(), (r"layer\d/\d/relu",), (".*",)], ids=str)
def test_recomputation_changes_no_bit(
    two_processes: PipelinePool, baseline: Arrays, points: tuple[str, ...]
):
    results = two_processes.run(train, two_replica_case(recompute=points))

    assert all(is_equal(item, baseline) for item in results)


@pytest.mark.parametrize("schedule", ["grouped", "interleaved", "sequential"])
@pytest.mark.parametrize("recompute", [None, ()], ids=["stored", "recomputed"])
def test_stages_and_schedules_change_no_bit(
    four_processes: PipelinePool, baseline: Arrays, schedule: str, recompute: tuple[str, ...] | None
):
    """Several micro-batches are between their forward and backward passes."""
    case = two_replica_case(starts=TWO_STAGES, schedule=schedule, recompute=recompute)
    results = four_processes.run(train, case)
    replicas = [
        dict(chain(*(item.items() for item in results[index : index + 2]))) for index in (0, 2)
    ]

    assert all(is_equal(replica, baseline) for replica in replicas)
