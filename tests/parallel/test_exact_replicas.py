"""Replicas in real processes: any layout of the same micro-batches ends with the same bits."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.replica_processes import (
    Case,
    Failed,
    Outcome,
    ReplicaPool,
    Shuffled,
    Sum,
    compare_weights,
    joined,
    reduce_shuffled,
    reduce_twice,
    replica_pool,
    train,
    unwrap,
)

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids="{} replicas".format)
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaPool]:
    with replica_pool(request.param, tmp_path_factory.mktemp("pool")) as ready:
        yield ready


@cache
def alone(micro_batches: int) -> Outcome:
    return train(None, Case(micro_batches))


def batches_for(pool: ReplicaPool) -> list[int]:
    return [count for count in (8, 12) if count % pool.replicas == 0]


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("offloaded", [False, True], ids=["resident", "offloaded"])
def test_five_updates_end_with_the_bits_of_one_replica(
    pool: ReplicaPool, sharded: bool, offloaded: bool, tmp_path: Path
) -> None:
    offload = tmp_path if offloaded else None
    for count in batches_for(pool):
        ended = unwrap(pool.run(train, Case(count, sharded=sharded, offload=offload)))

        assert {one.sha256 for one in ended} == {alone(count).sha256}
        for one in ended:
            assert one.state.keys() == alone(count).state.keys()
            for name, tensor in alone(count).state.items():
                assert np.array_equal(one.state[name], tensor), name


@pytest.mark.parametrize("buffer_bytes", [4000, 100_000])
def test_the_size_of_the_buffer_changes_no_bit(pool: ReplicaPool, buffer_bytes: int) -> None:
    case = Case(12, buffer_bytes=buffer_bytes, updates=range(1))
    ended = unwrap(pool.run(train, case))

    assert {one.sha256 for one in ended} == {train(None, case).sha256}


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
def test_portions_leave_during_the_last_backward_without_changing_a_bit(
    pool: ReplicaPool, sharded: bool, fast: bool
) -> None:
    case = Case(12, fast, sharded, buffer_bytes=20_000, updates=range(2))
    after = unwrap(pool.run(train, replace(case, overlapped=False)))
    during = unwrap(pool.run(train, case))

    assert [one.early for one in after] == [0] * pool.replicas
    assert all(one.early >= 8 for one in during)
    assert [one.sha256 for one in during] == [one.sha256 for one in after]


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("elements", [1, 16, 40, 50, 1000, 4099])
@pytest.mark.parametrize("accumulated", [1, 3, 5, 8])
def test_vectors_that_do_not_divide_are_reduced_as_by_one(
    pool: ReplicaPool, sharded: bool, elements: int, accumulated: int
) -> None:
    """Some replicas may own nothing at all."""
    lone = reduce_twice(None, Sum(elements, accumulated * pool.replicas))[1]
    case = Sum(elements, accumulated, sharded=sharded, buffer_bytes=1 if elements < 100 else 2000)
    parts = unwrap(pool.run(reduce_twice, case))

    assert all(len(owned) == len(values) for owned, values in parts)
    if sharded:
        assert joined(parts) == lone
    else:
        assert all(values == lone for _, values in parts)


@pytest.mark.parametrize("accumulator", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("accumulated", [1, 3, 4, 5])
def test_sums_of_every_type_are_those_of_one_replica(
    pool: ReplicaPool, accumulator: str, sharded: bool, accumulated: int
) -> None:
    """Seven portions and more, whatever the size of the type."""
    case = Sum(1000, accumulated, sharded=sharded, buffer_bytes=600, accumulator=accumulator)
    lone = reduce_twice(None, replace(case, accumulated=accumulated * pool.replicas))[1]
    parts = unwrap(pool.run(reduce_twice, case))

    assert (joined(parts) == lone) if sharded else all(values == lone for _, values in parts)


@pytest.mark.parametrize("accumulator", ["float64", "bfloat16"])
def test_a_training_with_sums_of_another_type_has_the_bits_of_one_replica(
    pool: ReplicaPool, accumulator: str
) -> None:
    case = Case(12, buffer_bytes=20_000, accumulator=accumulator)
    lone = train(None, case)
    ended = unwrap(pool.run(train, case))

    assert {one.sha256 for one in ended} == {lone.sha256} != {alone(12).sha256}


@pytest.mark.parametrize("accumulator", ["float64", "bfloat16", "float16"])
def test_fast_replicas_add_in_every_type(pool: ReplicaPool, accumulator: str) -> None:
    case = Sum(1000, 3, fast=True, buffer_bytes=600, accumulator=accumulator)
    lone = np.array(reduce_twice(None, replace(case, accumulated=3 * pool.replicas))[1])
    parts = unwrap(pool.run(reduce_twice, case))

    assert len({str(values) for _, values in parts}) == 1
    assert np.abs(np.array(parts[0][1]) - lone).max() < 0.05 * np.abs(lone).max()


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_replicas_whose_backward_runs_in_other_orders_reach_the_same_bits(
    pool: ReplicaPool, sharded: bool, accumulated: int
) -> None:
    case = Shuffled(accumulated, sharded=sharded)
    (lone,) = reduce_shuffled(None, replace(case, accumulated=accumulated * pool.replicas))
    parts = [one for (one,) in unwrap(pool.run(reduce_shuffled, case))]

    assert (joined(parts) == lone[1]) if sharded else all(one == lone for one in parts)


@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
def test_several_trees_of_one_process_are_reduced_at_the_same_time(
    pool: ReplicaPool, fast: bool
) -> None:
    case = Shuffled(2, trees=3, same_order=True, fast=fast)
    during = unwrap(pool.run(reduce_shuffled, case))
    after = unwrap(pool.run(reduce_shuffled, replace(case, overlapped=False)))
    lone = reduce_shuffled(None, replace(case, accumulated=2 * pool.replicas))

    assert during == after
    assert fast or all(one == lone for one in during)


def test_sharding_divides_the_state(pool: ReplicaPool) -> None:
    whole = sum(one.size for one in alone(12).state.values())
    ended = unwrap(pool.run(train, Case(12, sharded=True, updates=range(1))))
    kept = [one.state_elements for one in ended]

    assert max(kept) <= whole / pool.replicas + 16 * len(alone(12).state)
    assert sum(kept) >= whole


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_a_training_saved_by_one_goes_on_with_the_same_bits(
    pool: ReplicaPool, sharded: bool
) -> None:
    begun = train(None, Case(12, updates=range(2)))
    ended = unwrap(pool.run(train, Case(12, sharded=sharded, updates=range(2, 5), start=begun)))

    assert {one.sha256 for one in ended} == {alone(12).sha256}


def test_a_training_saved_in_shards_goes_on_with_the_same_bits_in_one(pool: ReplicaPool) -> None:
    begun = unwrap(pool.run(train, Case(12, sharded=True, updates=range(2))))[-1]
    ended = train(None, Case(12, updates=range(2, 5), start=begun))

    assert ended.sha256 == alone(12).sha256


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_fast_replicas_agree_among_themselves_and_stay_near(
    pool: ReplicaPool, sharded: bool
) -> None:
    """Seen were 0 to 5e-7 after five updates, statistics included; the bound leaves room."""
    ended = unwrap(pool.run(train, Case(12, fast=True, sharded=sharded)))
    apart = max(
        float(np.abs(ended[0].tensors[name] - tensor).max())
        for name, tensor in alone(12).tensors.items()
    )

    assert len({one.sha256 for one in ended}) == 1
    assert apart < 1e-5


def test_a_fast_mean_is_within_a_few_last_bits_of_the_exact_one(pool: ReplicaPool) -> None:
    lone = np.array(reduce_twice(None, Sum(4099, 4 * pool.replicas))[1])
    parts = unwrap(pool.run(reduce_twice, Sum(4099, 4, fast=True, buffer_bytes=2000)))

    for _, values in parts:
        assert np.abs(np.array(values) - lone).max() < 1e-5 * np.abs(lone).max()


def test_replicas_with_equal_weights_agree(pool: ReplicaPool) -> None:
    assert pool.run(compare_weights, ()) == ["agreed"] * pool.replicas


def test_one_flipped_bit_ends_the_run_everywhere_and_names_the_rank(pool: ReplicaPool) -> None:
    if pool.replicas == 1:
        pytest.skip("nobody to differ from")
    odd = pool.replicas - 1
    answers = pool.run(compare_weights, (odd,))

    for answer in answers:
        assert isinstance(answer, Failed)
        kind, text = answer.args
        assert kind == "NumericError"
        assert f"replica {odd} (rank {odd})" in text and "update 100" in text
