"""Every gradient reduction in real processes has the bits of a single replica."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from support.replica_processes import (
    Case,
    ReplicaPool,
    Sum,
    joined,
    leaf,
    reduce_twice,
    replica_pool,
    train,
    unwrap,
)
from support.sweeps import sweep

from convoy.numerics.gradients import DIVIDED_FIRST, REDUCTIONS

pytestmark = pytest.mark.processes

# Two replicas divide every bucket evenly, three do not. Groups of one and four are slow.
POOLS = [2, 3, *(pytest.param(replicas, marks=pytest.mark.evidence) for replicas in (1, 4))]

ACCUMULATIONS = (1, 3, 6)  # one, uneven, uneven on several levels
DTYPES = ["float64", "float32", "bfloat16", "float16"]
ALL_REDUCTIONS = (*REDUCTIONS, DIVIDED_FIRST)


@pytest.fixture(scope="module", params=POOLS, ids="{} replicas".format)
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaPool]:
    with replica_pool(request.param, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


def single_replica(case: Sum, pool: ReplicaPool) -> list[float]:
    """The result of one process with the micro-batches of all replicas."""
    return reduce_twice(None, replace(case, accumulated=case.accumulated * pool.replicas))[1]


def check_reduction(pool: ReplicaPool, case: Sum) -> None:
    expected = single_replica(case, pool)
    shards = unwrap(pool.run(reduce_twice, case))
    if case.sharded:
        assert joined(shards) == expected
    else:
        assert all(values == expected for _, values in shards)


@sweep(["reduction", "accumulator"], list(product(ALL_REDUCTIONS, DTYPES)))
def test_every_reduction_has_the_bits_of_a_single_replica(
    pool: ReplicaPool, reduction: str, accumulator: str
) -> None:
    check_reduction(
        pool, Sum(300, 3, False, True, 600, accumulator=accumulator, reduction=reduction)
    )
    check_reduction(
        pool, Sum(300, 6, False, False, 600, accumulator=accumulator, reduction=reduction)
    )


@pytest.mark.evidence
@sweep(
    ["reduction", "accumulator", "count", "sharded"],
    list(product(ALL_REDUCTIONS, DTYPES, ACCUMULATIONS, [False, True])),
)
def test_every_reduction_and_count_has_the_bits_of_a_single_replica(
    pool: ReplicaPool, reduction: str, accumulator: str, count: int, sharded: bool
) -> None:
    check_reduction(
        pool, Sum(300, count, False, sharded, 600, accumulator=accumulator, reduction=reduction)
    )


def leaves_in_double(case: Sum, pool: ReplicaPool) -> npt.NDArray[np.float64]:
    """All leaves of the second update in float64."""
    numbers = range(case.accumulated * pool.replicas)
    return np.array([leaf(number, case.elements).double().numpy() for number in numbers])


@sweep(["reduction", "fast"], list(product(ALL_REDUCTIONS, [False, True])))
def test_replicas_are_close_to_the_formula_in_double(
    pool: ReplicaPool, reduction: str, fast: bool
) -> None:
    """The bound is about ten roundings of 2^-24, relative to the magnitude of the leaves."""
    for count in ACCUMULATIONS:
        case = Sum(300, count, fast, buffer_bytes=600, reduction=reduction)
        leaves = leaves_in_double(case, pool)
        divisor = 1 if reduction == "sum" else len(leaves)
        exact, magnitudes = leaves.sum(0) / divisor, np.abs(leaves).sum(0) / divisor
        for _, values in unwrap(pool.run(reduce_twice, case)):
            assert (np.abs(np.array(values)[:300] - exact) <= 2e-6 * magnitudes).all()


@sweep("fast", [False, True])
def test_16_bit_sums_overflow_where_guarded_reductions_do_not(
    pool: ReplicaPool, fast: bool
) -> None:
    """Five leaves of 40,000 each; the largest float16 is 65,504."""
    case = Sum(300, 5, fast, buffer_bytes=600, accumulator="float16", constant=40000.0)
    means = {}
    for reduction in ("sum", "mean", "running-mean", DIVIDED_FIRST, "auto"):
        parts = unwrap(pool.run(reduce_twice, replace(case, reduction=reduction)))
        means[reduction] = np.array([values[:300] for _, values in parts])

    assert np.isinf(means["sum"]).all() and np.isinf(means["mean"]).all()
    for reduction in ("running-mean", DIVIDED_FIRST, "auto"):
        assert (np.abs(means[reduction] - 40000) <= 40000 * 2.0**-8).all()


@sweep("reduction", ["sum", "running-mean", DIVIDED_FIRST])
def test_training_has_the_bits_of_a_single_replica_and_differs_from_a_mean(
    pool: ReplicaPool, reduction: str
) -> None:
    case = Case(12, buffer_bytes=20_000, reduction=reduction, updates=range(2))
    expected = train(None, case)
    outcomes = unwrap(pool.run(train, case))

    assert {outcome.sha256 for outcome in outcomes} == {expected.sha256}
    assert expected.sha256 != train(None, replace(case, reduction="mean")).sha256
