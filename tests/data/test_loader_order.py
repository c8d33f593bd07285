"""The order of samples: each at most once per epoch, reshuffled, and equal for every layout."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.data.loader import MicroBatchIndex, SampleOrder
from convoy.data.source import Ids
from convoy.errors import ConfigError
from convoy.planning.topology import BatchPlan


def epoch_of(order: SampleOrder, epoch: int) -> list[int]:
    """All ids of an epoch, in the order of its micro-batches."""
    first = epoch * order.updates_per_epoch
    indices = indices_of(order, range(first, first + order.updates_per_epoch))
    return [int(sample) for index in indices for sample in order.ids(index)]


def indices_of(order: SampleOrder, updates: range) -> list[MicroBatchIndex]:
    return [
        MicroBatchIndex(update, micro)
        for update in updates
        for micro in range(order.batch.micro_batches)
    ]


@st.composite
def orders(draw: st.DrawFn) -> SampleOrder:
    """Any small batch, and any number of samples that fills at least one update."""
    span, spans = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    batch = BatchPlan(draw(st.integers(1, 9)), draw(st.integers(1, 5)), span * spans, span)
    samples = batch.samples_per_update + draw(st.integers(0, 300))
    return SampleOrder(samples, batch, draw(st.integers(0, 2**40)))


@settings(deadline=None)  # other processes may slow this one down
@given(orders(), st.integers(0, 5))
def test_an_epoch_takes_each_sample_at_most_once_and_leaves_only_the_remainder(
    order: SampleOrder, epoch: int
) -> None:
    ids = epoch_of(order, epoch)

    assert len(ids) == order.samples - order.samples % order.batch.samples_per_update
    assert len(set(ids)) == len(ids)
    assert all(0 <= sample < order.samples for sample in ids)


@settings(deadline=None)  # other processes may slow this one down
@given(orders(), st.integers(0, 50))
def test_every_micro_batch_is_full(order: SampleOrder, update: int) -> None:
    sizes = {len(order.ids(index)) for index in indices_of(order, range(update, update + 1))}

    assert sizes == {order.batch.micro_batch_size}


def test_an_epoch_without_remainder_is_a_permutation() -> None:
    order = SampleOrder(60, BatchPlan(5, 2, 2), seed=3)

    assert sorted(epoch_of(order, 0)) == list(range(60))
    assert epoch_of(order, 0) != list(range(60))


def test_different_samples_are_left_out_in_different_epochs() -> None:
    order = SampleOrder(1005, BatchPlan(10, 10, 1), seed=0)
    left_out = [set(range(1005)) - set(epoch_of(order, epoch)) for epoch in range(4)]

    assert all(len(ids) == 5 for ids in left_out)
    assert len({frozenset(ids) for ids in left_out}) == 4


def test_epochs_and_seeds_have_different_orders() -> None:
    batch = BatchPlan(10, 1, 1)
    seen = [
        tuple(epoch_of(SampleOrder(100, batch, seed), epoch))
        for seed in range(5)
        for epoch in range(5)
    ]

    assert len(set(seen)) == 25


def test_neighbors_of_an_epoch_are_separated_in_the_next() -> None:
    order = SampleOrder(10_000, BatchPlan(100, 1, 1), seed=1)
    positions = np.argsort(epoch_of(order, 0))
    next_positions = np.argsort(epoch_of(order, 1))
    noise = 1 / np.sqrt(10_000)  # standard deviation of the correlation

    assert abs(np.corrcoef(positions, next_positions)[0, 1]) < 5 * noise


@settings(deadline=None)  # other processes may slow this one down
@given(orders(), st.integers(0, 20))
def test_replicas_and_accumulation_can_be_exchanged(order: SampleOrder, update: int) -> None:
    size, count = order.batch.micro_batch_size, order.batch.micro_batches
    layouts = [BatchPlan(size, count // n, n) for n in range(1, count + 1) if count % n == 0]
    seen = [
        [
            with_batch(order, layout).ids(MicroBatchIndex(update, micro)).tolist()
            for micro in range(count)
        ]
        for layout in layouts
    ]

    assert all(ids == seen[0] for ids in seen)


def with_batch(order: SampleOrder, batch: BatchPlan) -> SampleOrder:
    return SampleOrder(order.samples, batch, order.seed)


@settings(deadline=None)  # other processes may slow this one down
@given(orders(), st.integers(0, 20))
def test_the_micro_batches_of_all_replicas_make_one_update(order: SampleOrder, update: int) -> None:
    batch = order.batch
    indices = [
        MicroBatchIndex(update, micro)
        for replica in range(batch.replicas)
        for micro in batch.micro_batches_of(replica)
    ]
    ids = np.concatenate([order.ids(index) for index in indices])

    assert len(set(ids.tolist())) == batch.samples_per_update


@settings(deadline=None)  # other processes may slow this one down
@given(orders(), st.integers(0, 20))
def test_replicas_together_use_the_samples_of_larger_micro_batches(
    order: SampleOrder, update: int
) -> None:
    batch, span = order.batch, order.batch.bn_span
    larger = BatchPlan(
        span * batch.micro_batch_size, batch.gradient_accumulation, batch.replicas // span
    )
    for replica in range(larger.replicas):
        partners = [batch.micro_batches_of(replica * span + offset) for offset in range(span)]
        for micro, full in enumerate(larger.micro_batches_of(replica)):
            parts = [order.ids(MicroBatchIndex(update, partner[micro])) for partner in partners]
            expected = with_batch(order, larger).ids(MicroBatchIndex(update, full))

            assert np.concatenate(parts).tolist() == expected.tolist()


def test_an_update_does_not_depend_on_the_updates_read_before() -> None:
    order = SampleOrder(1000, BatchPlan(16, 3, 1), seed=7)
    indices = indices_of(order, range(50))
    forward = [order.ids(index).tolist() for index in indices]
    fresh = SampleOrder(1000, BatchPlan(16, 3, 1), seed=7)
    backward = [fresh.ids(index).tolist() for index in reversed(indices)]

    assert backward[::-1] == forward


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_concurrent_workers_get_the_same_order(workers: int) -> None:
    order = SampleOrder(500, BatchPlan(7, 2, 1), seed=2)
    indices = indices_of(order, range(200))  # 5 epochs, more than are cached
    sequential = [order.ids(index).tolist() for index in indices]
    with ThreadPoolExecutor(workers) as pool:
        concurrent = [ids.tolist() for ids in pool.map(order.ids, indices)]

    assert concurrent == sequential


def test_the_epoch_of_an_index_follows_its_update() -> None:
    order = SampleOrder(100, BatchPlan(10, 3, 1), seed=0)

    assert [order.locate(MicroBatchIndex(update, 0))[0] for update in range(7)] == [
        0,
        0,
        0,
        1,
        1,
        1,
        2,
    ]


def test_the_cached_order_is_read_only() -> None:
    ids: Ids = SampleOrder(10, BatchPlan(5, 1, 1), seed=0).ids(MicroBatchIndex(0, 0))

    assert not ids.flags.writeable


def test_an_index_beyond_the_update_is_an_assertion_error() -> None:
    order = SampleOrder(100, BatchPlan(10, 2, 1), seed=0)

    with pytest.raises(AssertionError):
        order.ids(MicroBatchIndex(0, 2))


def test_fewer_samples_than_one_update_are_refused() -> None:
    order = SampleOrder(19, BatchPlan(10, 2, 1), seed=0)

    with pytest.raises(ConfigError, match=r"needs 20 samples .* has 19"):
        order.ids(MicroBatchIndex(0, 0))


@settings(deadline=None)  # other processes may slow this one down
@given(orders(), st.integers(0, 3))
def test_micro_batch_numbers_restart_every_epoch(order: SampleOrder, epoch: int) -> None:
    first = epoch * order.updates_per_epoch
    indices = indices_of(order, range(first, first + order.updates_per_epoch))

    assert [order.locate(index)[1] for index in indices] == list(range(len(indices)))


@pytest.mark.parametrize(("accumulated", "replicas"), [(12, 1), (6, 2), (4, 3), (1, 12)])
def test_the_number_of_a_micro_batch_is_the_same_for_every_layout(
    accumulated: int, replicas: int
) -> None:
    order = SampleOrder(100, BatchPlan(2, accumulated, replicas), seed=1)

    assert order.locate(MicroBatchIndex(5, 7))[1] == (5 % 4) * 12 + 7


def test_a_run_may_start_with_a_later_epoch() -> None:
    batch = BatchPlan(5, 2, 1)
    full, later = SampleOrder(100, batch, 3), SampleOrder(100, batch, 3, first_epoch=2)

    assert epoch_of(later, 0) == epoch_of(full, 2) != epoch_of(full, 0)
    assert [later.locate(MicroBatchIndex(update, 0))[0] for update in (0, 9, 10)] == [2, 2, 3]
