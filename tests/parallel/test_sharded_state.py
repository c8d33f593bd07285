"""Optimizer state sharded over replicas in real processes, for every update rule."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from support.replica_processes import Case, Outcome, ReplicaPool, replica_pool, train, unwrap
from support.sharded_vectors import Vector, gathered

pytestmark = pytest.mark.processes

OPTIMIZERS = ("sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars")


@pytest.fixture(scope="module", params=[2, 3], ids="{} replicas".format)
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaPool]:
    with replica_pool(request.param, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


@cache
def single_replica(optimizer: str) -> Outcome:
    return train(None, Case(6, optimizer=optimizer))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_has_the_bits_of_a_single_replica(
    pool: ReplicaPool, optimizer: str
) -> None:
    outcomes = unwrap(pool.run(train, Case(6, sharded=True, optimizer=optimizer)))

    assert {outcome.sha256 for outcome in outcomes} == {single_replica(optimizer).sha256}
    assert (
        single_replica(optimizer).sha256 != train(None, Case(6)).sha256
        or optimizer == "sgd_combined"
    )
    for outcome in outcomes:
        for name, tensor in single_replica(optimizer).state.items():
            assert np.array_equal(outcome.state[name], tensor), name


@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
@pytest.mark.parametrize("elements", [0, 16, 32, 48, 16 * 17, 16 * 100])
def test_shards_of_any_length_are_gathered(pool: ReplicaPool, elements: int, sharded: bool) -> None:
    """A vector of one row belongs to the first replica, and the others receive it."""
    found = unwrap(pool.run(gathered, Vector(elements, sharded)))

    assert found == [gathered(None, Vector(elements))] * pool.replicas
