"""State divided over replicas in real processes: every rule, and vectors too short for all."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from support.replica_processes import Case, Outcome, ReplicaPool, replica_pool, train, unwrap
from support.sharded_vectors import Vector, gathered

pytestmark = pytest.mark.processes

OTHERS = ("sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars")


@pytest.fixture(scope="module", params=[2, 3], ids="{} replicas".format)
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaPool]:
    with replica_pool(request.param, tmp_path_factory.mktemp("pool")) as ready:
        yield ready


@cache
def alone(optimizer: str) -> Outcome:
    return train(None, Case(6, optimizer=optimizer))


@pytest.mark.parametrize("optimizer", OTHERS)
def test_every_rule_ends_with_the_bits_of_one_replica(pool: ReplicaPool, optimizer: str) -> None:
    ended = unwrap(pool.run(train, Case(6, sharded=True, optimizer=optimizer)))

    assert {item.sha256 for item in ended} == {alone(optimizer).sha256}
    assert alone(optimizer).sha256 != train(None, Case(6)).sha256 or optimizer == "sgd_combined"
    for item in ended:
        for name, tensor in alone(optimizer).state.items():
            assert np.array_equal(item.state[name], tensor), name


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("elements", [0, 16, 32, 48, 16 * 17, 16 * 100])
def test_shards_of_any_length_are_gathered(pool: ReplicaPool, elements: int, sharded: bool) -> None:
    """One row belongs to the first replica alone, and the others must hear of it."""
    found = unwrap(pool.run(gathered, Vector(elements, sharded)))

    assert found == [gathered(None, Vector(elements))] * pool.replicas
