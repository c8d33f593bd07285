"""Replicas in real processes: every layout of the same micro-batches has the same bits."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
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
from support.sweeps import sweep

pytestmark = pytest.mark.processes

# Two replicas divide every bucket evenly, three do not. Groups of one and four are slow.
POOLS = [2, 3, *(pytest.param(replicas, marks=pytest.mark.evidence) for replicas in (1, 4))]


@pytest.fixture(scope="module", params=POOLS, ids="{} replicas".format)
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaPool]:
    with replica_pool(request.param, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


@cache
def single_replica(micro_batches: int) -> Outcome:
    return train(None, Case(micro_batches))


def micro_batch_counts(pool: ReplicaPool) -> list[int]:
    return [count for count in (8, 12) if count % pool.replicas == 0]


@sweep(["sharded", "offloaded"], product([False, True], repeat=2))
def test_five_updates_end_with_the_bits_of_a_single_replica(
    pool: ReplicaPool, sharded: bool, offloaded: bool, tmp_path: Path
) -> None:
    offload = tmp_path if offloaded else None
    for count in micro_batch_counts(pool):
        outcomes = unwrap(pool.run(train, Case(count, sharded=sharded, offload=offload)))

        assert {outcome.sha256 for outcome in outcomes} == {single_replica(count).sha256}
        for outcome in outcomes:
            assert outcome.state.keys() == single_replica(count).state.keys()
            for name, tensor in single_replica(count).state.items():
                assert np.array_equal(outcome.state[name], tensor), name


@sweep("buffer_bytes", [4000, 100_000])
def test_the_size_of_the_buffer_changes_no_bit(pool: ReplicaPool, buffer_bytes: int) -> None:
    case = Case(12, buffer_bytes=buffer_bytes, updates=range(1))
    outcomes = unwrap(pool.run(train, case))

    assert {outcome.sha256 for outcome in outcomes} == {train(None, case).sha256}


@sweep(["sharded", "fast"], product([False, True], repeat=2))
def test_buckets_sent_during_the_last_backward_change_no_bit(
    pool: ReplicaPool, sharded: bool, fast: bool
) -> None:
    case = Case(12, fast, sharded, buffer_bytes=20_000, updates=range(2))
    after = unwrap(pool.run(train, replace(case, overlapped=False)))
    during = unwrap(pool.run(train, case))

    assert [outcome.early_messages for outcome in after] == [0] * pool.replicas
    assert all(outcome.early_messages >= 8 for outcome in during)
    assert [outcome.sha256 for outcome in during] == [outcome.sha256 for outcome in after]


ELEMENTS, ACCUMULATED = (1, 16, 40, 50, 1000, 4099), (1, 3, 5, 8)


def check_reduction(pool: ReplicaPool, case: Sum) -> None:
    """The replicas' gradient is that of a single replica with all micro-batches."""
    expected = reduce_twice(None, replace(case, accumulated=case.accumulated * pool.replicas))[1]
    shards = unwrap(pool.run(reduce_twice, case))

    assert all(len(shard_range) == len(values) for shard_range, values in shards)
    if case.sharded:
        assert joined(shards) == expected
    else:
        assert all(values == expected for _, values in shards)


def uneven_vector(elements: int, accumulated: int, sharded: bool) -> Sum:
    buffer_bytes = 1 if elements < 100 else 2000
    return Sum(elements, accumulated, sharded=sharded, buffer_bytes=buffer_bytes)


@sweep(
    ["elements", "accumulated", "sharded"],
    [
        (1, 3, False),
        (1, 5, True),
        (16, 1, True),
        (40, 3, True),
        (50, 5, True),
        (1000, 8, False),
        (4099, 1, False),
        (4099, 5, True),
    ],
)
def test_vectors_that_do_not_divide_evenly_have_the_bits_of_a_single_replica(
    pool: ReplicaPool, elements: int, accumulated: int, sharded: bool
) -> None:
    """Some replicas may own no element at all."""
    check_reduction(pool, uneven_vector(elements, accumulated, sharded))


@pytest.mark.evidence
@sweep(["elements", "accumulated", "sharded"], list(product(ELEMENTS, ACCUMULATED, [False, True])))
def test_vectors_of_every_size_have_the_bits_of_a_single_replica(
    pool: ReplicaPool, elements: int, accumulated: int, sharded: bool
) -> None:
    check_reduction(pool, uneven_vector(elements, accumulated, sharded))


DTYPES = ("float64", "float32", "bfloat16", "float16")


@sweep(
    ["accumulator", "sharded", "accumulated"],
    [
        *((dtype, sharded, 3) for dtype in DTYPES for sharded in (False, True)),
        ("float64", True, 1),
        ("bfloat16", False, 4),
        ("float16", True, 5),
    ],
)
def test_accumulators_of_every_dtype_have_the_bits_of_a_single_replica(
    pool: ReplicaPool, accumulator: str, sharded: bool, accumulated: int
) -> None:
    """There are at least seven buckets with every dtype."""
    check_reduction(
        pool, Sum(1000, accumulated, False, sharded, buffer_bytes=600, accumulator=accumulator)
    )


@pytest.mark.evidence
@sweep(
    ["accumulator", "sharded", "accumulated"], list(product(DTYPES, [False, True], [1, 3, 4, 5]))
)
def test_accumulators_of_every_dtype_and_count_have_the_bits_of_a_single_replica(
    pool: ReplicaPool, accumulator: str, sharded: bool, accumulated: int
) -> None:
    check_reduction(
        pool, Sum(1000, accumulated, False, sharded, buffer_bytes=600, accumulator=accumulator)
    )


@sweep("accumulator", ["float64", "bfloat16"])
def test_training_with_another_accumulator_dtype_has_the_bits_of_a_single_replica(
    pool: ReplicaPool, accumulator: str
) -> None:
    case = Case(12, buffer_bytes=20_000, accumulator=accumulator)
    expected = train(None, case)
    outcomes = unwrap(pool.run(train, case))

    assert (
        {outcome.sha256 for outcome in outcomes} == {expected.sha256} != {single_replica(12).sha256}
    )


@sweep("accumulator", ["float64", "bfloat16", "float16"])
def test_fast_replicas_accumulate_in_every_dtype(pool: ReplicaPool, accumulator: str) -> None:
    case = Sum(1000, 3, fast=True, buffer_bytes=600, accumulator=accumulator)
    expected = np.array(reduce_twice(None, replace(case, accumulated=3 * pool.replicas))[1])
    parts = unwrap(pool.run(reduce_twice, case))

    assert len({str(values) for _, values in parts}) == 1
    assert np.abs(np.array(parts[0][1]) - expected).max() < 0.05 * np.abs(expected).max()


@sweep(["sharded", "accumulated"], product([False, True], [1, 3]))
def test_replicas_whose_backward_runs_in_different_orders_have_the_same_bits(
    pool: ReplicaPool, sharded: bool, accumulated: int
) -> None:
    case = Shuffled(accumulated, sharded=sharded)
    (expected,) = reduce_shuffled(None, replace(case, accumulated=accumulated * pool.replicas))
    parts = [item for (item,) in unwrap(pool.run(reduce_shuffled, case))]

    assert (joined(parts) == expected[1]) if sharded else all(part == expected for part in parts)


@sweep("fast", [False, True])
def test_several_trees_of_a_process_are_reduced_at_the_same_time(
    pool: ReplicaPool, fast: bool
) -> None:
    case = Shuffled(2, trees=3, same_order=True, fast=fast)
    during = unwrap(pool.run(reduce_shuffled, case))
    after = unwrap(pool.run(reduce_shuffled, replace(case, overlapped=False)))
    expected = reduce_shuffled(None, replace(case, accumulated=2 * pool.replicas))

    assert during == after
    assert fast or all(trees == expected for trees in during)


def test_sharding_divides_the_optimizer_state(pool: ReplicaPool) -> None:
    full = sum(item.size for item in single_replica(12).state.values())
    outcomes = unwrap(pool.run(train, Case(12, sharded=True, updates=range(1))))
    elements = [outcome.state_elements for outcome in outcomes]

    assert max(elements) <= full / pool.replicas + 16 * len(single_replica(12).state)
    assert sum(elements) >= full


@sweep("sharded", [False, True])
def test_training_saved_by_a_single_replica_resumes_with_the_same_bits(
    pool: ReplicaPool, sharded: bool
) -> None:
    saved = train(None, Case(12, updates=range(2)))
    outcomes = unwrap(pool.run(train, Case(12, sharded=sharded, updates=range(2, 5), start=saved)))

    assert {outcome.sha256 for outcome in outcomes} == {single_replica(12).sha256}


def test_training_saved_in_shards_resumes_in_a_single_replica_with_the_same_bits(
    pool: ReplicaPool,
) -> None:
    saved = unwrap(pool.run(train, Case(12, sharded=True, updates=range(2))))[-1]
    outcome = train(None, Case(12, updates=range(2, 5), start=saved))

    assert outcome.sha256 == single_replica(12).sha256


@sweep("sharded", [False, True])
def test_fast_replicas_have_equal_weights_close_to_the_exact_ones(
    pool: ReplicaPool, sharded: bool
) -> None:
    """Measured differences are 0 to 5e-7 after five updates, statistics included."""
    outcomes = unwrap(pool.run(train, Case(12, fast=True, sharded=sharded)))
    difference = max(
        float(np.abs(outcomes[0].tensors[name] - tensor).max())
        for name, tensor in single_replica(12).tensors.items()
    )

    assert len({outcome.sha256 for outcome in outcomes}) == 1
    assert difference < 1e-5


def test_a_fast_mean_is_within_a_few_last_bits_of_the_exact_mean(pool: ReplicaPool) -> None:
    expected = np.array(reduce_twice(None, Sum(4099, 4 * pool.replicas))[1])
    parts = unwrap(pool.run(reduce_twice, Sum(4099, 4, fast=True, buffer_bytes=2000)))

    for _, values in parts:
        assert np.abs(np.array(values) - expected).max() < 1e-5 * np.abs(expected).max()


def test_replicas_with_equal_weights_agree(pool: ReplicaPool) -> None:
    assert pool.run(compare_weights, ()) == ["agreed"] * pool.replicas


def test_one_flipped_bit_stops_every_replica_and_names_the_rank(pool: ReplicaPool) -> None:
    if pool.replicas == 1:
        pytest.skip("no other replica to compare with")
    odd = pool.replicas - 1
    failures = pool.run(compare_weights, (odd,))

    for failure in failures:
        assert isinstance(failure, Failed)
        kind, text = failure.args
        assert kind == "NumericError"
        assert f"replica {odd} (rank {odd})" in text and "update 100" in text
