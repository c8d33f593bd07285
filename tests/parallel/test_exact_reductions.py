"""Every way to make one gradient of many, in real processes: the bits of one replica."""

from collections.abc import Iterator
from dataclasses import replace

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

from convoy.numerics.gradients import DIVIDED_FIRST, REDUCTIONS

pytestmark = pytest.mark.processes

ACCUMULATIONS = (1, 3, 6)  # one, uneven, uneven on several levels
TYPES = ["float64", "float32", "bfloat16", "float16"]
in_every_way = pytest.mark.parametrize("way", (*REDUCTIONS, DIVIDED_FIRST))


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids="{} replicas".format)
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaPool]:
    with replica_pool(request.param, tmp_path_factory.mktemp("pool")) as ready:
        yield ready


def alone(case: Sum, pool: ReplicaPool) -> list[float]:
    """The same micro-batches in one process."""
    return reduce_twice(None, replace(case, accumulated=case.accumulated * pool.replicas))[1]


@in_every_way
@pytest.mark.parametrize("accumulator", TYPES)
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_every_split_has_the_bits_of_one_replica(
    pool: ReplicaPool, way: str, accumulator: str, sharded: bool
) -> None:
    for count in ACCUMULATIONS:
        case = Sum(300, count, False, sharded, 600, accumulator=accumulator, way=way)
        lone = alone(case, pool)
        parts = unwrap(pool.run(reduce_twice, case))

        assert (joined(parts) == lone) if sharded else all(values == lone for _, values in parts)


def in_double(case: Sum, pool: ReplicaPool) -> npt.NDArray[np.float64]:
    """All leaves of the second update."""
    numbers = range(case.accumulated * pool.replicas)
    return np.array([leaf(one, case.elements).double().numpy() for one in numbers])


@in_every_way
@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
def test_replicas_come_near_to_the_formula_in_double(
    pool: ReplicaPool, way: str, fast: bool
) -> None:
    """About ten roundings of 2^-24 of what the leaves are in size."""
    for count in ACCUMULATIONS:
        case = Sum(300, count, fast, buffer_bytes=600, way=way)
        given = in_double(case, pool)
        numbers = 1 if way == "sum" else len(given)
        true, sizes = given.sum(0) / numbers, np.abs(given).sum(0) / numbers
        for _, values in unwrap(pool.run(reduce_twice, case)):
            assert (np.abs(np.array(values)[:300] - true) <= 2e-6 * sizes).all()


@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
def test_sums_of_16_bits_overflow_where_guarded_ways_do_not(pool: ReplicaPool, fast: bool) -> None:
    """Five leaves of 40,000 each; 65,504 is the most."""
    case = Sum(300, 5, fast, buffer_bytes=600, accumulator="float16", alike=40000.0)
    found = {}
    for way in ("sum", "mean", "running-mean", DIVIDED_FIRST, "auto"):
        parts = unwrap(pool.run(reduce_twice, replace(case, way=way)))
        found[way] = np.array([values[:300] for _, values in parts])

    assert np.isinf(found["sum"]).all() and np.isinf(found["mean"]).all()
    for way in ("running-mean", DIVIDED_FIRST, "auto"):
        assert (np.abs(found[way] - 40000) <= 40000 * 2.0**-8).all()


@pytest.mark.parametrize("way", ["sum", "running-mean", DIVIDED_FIRST])
def test_a_training_has_the_bits_of_one_replica_and_other_ones_than_a_mean(
    pool: ReplicaPool, way: str
) -> None:
    case = Case(12, buffer_bytes=20_000, way=way, updates=range(2))
    lone = train(None, case)
    ended = unwrap(pool.run(train, case))

    assert {one.sha256 for one in ended} == {lone.sha256}
    assert lone.sha256 != train(None, replace(case, way="mean")).sha256
