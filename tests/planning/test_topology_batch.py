"""Batch arithmetic: samples, updates, epochs, and the micro-batches of each replica."""

from dataclasses import FrozenInstanceError

import pytest

from convoy.errors import ConfigError
from convoy.planning.topology import BatchPlan

SMALL = [
    BatchPlan(micro, accumulation, replicas)
    for micro in (1, 3, 8)
    for accumulation in (1, 2, 5)
    for replicas in (1, 2, 4)
]
WITH_SPANS = [
    BatchPlan(2, accumulation, replicas, span)
    for accumulation in (1, 2, 3)
    for replicas in (2, 4, 6)
    for span in (1, 2, 3, 4, 6)
    if replicas % span == 0
]


def test_the_published_batch_of_sixteen_replicas_has_its_published_updates():
    plan = BatchPlan(micro_batch_size=8, gradient_accumulation=8, replicas=16)

    assert plan.samples_per_update == 1024
    assert plan.micro_batches == 128
    assert plan.updates_per_epoch(1_281_167) == 1251


@pytest.mark.parametrize("plan", SMALL)
def test_an_epoch_has_as_many_complete_updates_as_its_samples_allow(plan: BatchPlan):
    for samples in range(plan.samples_per_update, 4 * plan.samples_per_update + 1):
        used = plan.updates_per_epoch(samples) * plan.samples_per_update

        assert samples - plan.samples_per_update < used <= samples


@pytest.mark.parametrize("plan", SMALL)
def test_every_micro_batch_of_an_update_belongs_to_one_replica_in_order(plan: BatchPlan):
    micro_batches = [
        micro for replica in range(plan.replicas) for micro in plan.micro_batches_of(replica)
    ]

    assert micro_batches == list(range(plan.micro_batches))
    assert {len(plan.micro_batches_of(replica)) for replica in range(plan.replicas)} == {
        plan.gradient_accumulation
    }


def test_a_replica_has_consecutive_micro_batches():
    assert BatchPlan(4, 3, 2).micro_batches_of(1) == range(3, 6)


def test_replicas_that_share_statistics_have_consecutive_micro_batches():
    plans = [BatchPlan(4, 2, 4, bn_span=span) for span in (1, 2, 4)]
    texts = [
        " | ".join("".join(map(str, plan.micro_batches_of(replica))) for replica in range(4))
        for plan in plans
    ]

    assert texts == ["01 | 23 | 45 | 67", "02 | 13 | 46 | 57", "04 | 15 | 26 | 37"]


@pytest.mark.parametrize("plan", WITH_SPANS)
def test_replicas_that_share_statistics_equal_one_with_larger_micro_batches(plan: BatchPlan):
    span, accumulation = plan.bn_span, plan.gradient_accumulation
    larger = BatchPlan(plan.micro_batch_size * span, accumulation, plan.replicas // span)
    for replica in range(larger.replicas):
        partners = range(replica * span, (replica + 1) * span)
        shared = list(zip(*map(plan.micro_batches_of, partners), strict=True))

        assert shared == [
            tuple(range(span * micro, span * (micro + 1)))
            for micro in larger.micro_batches_of(replica)
        ]


def test_a_span_that_does_not_divide_the_replicas_is_an_assertion_error():
    with pytest.raises(AssertionError):
        BatchPlan(1, 1, 4, bn_span=3)


def test_too_few_samples_are_refused_with_the_numbers_and_a_fix():
    with pytest.raises(ConfigError) as refused:
        BatchPlan(16, 8, 4).updates_per_epoch(511)

    message = str(refused.value)
    assert "512 samples (micro-batch size 16 × gradient accumulation 8 × 4 replicas)" in message
    assert "has 511; lower --micro-batch-size, --gradient-accumulation or --replicas" in message


def test_the_samples_of_one_update_are_enough():
    assert BatchPlan(16, 8, 4).updates_per_epoch(512) == 1


def test_a_fraction_of_an_epoch_is_read_as_an_exact_decimal():
    texts = [f"{hundredths / 100:.2f}" for hundredths in range(1, 301)]
    updates = [BatchPlan(1, 1, 1).total_updates(100, float(epochs)) for epochs in texts]

    assert updates == list(range(1, 301))


def test_a_run_has_complete_updates_in_every_epoch():
    plan = BatchPlan(10, 1, 1)

    assert plan.total_updates(samples=25, epochs=4) == 8
    assert plan.total_updates(samples=25, epochs=2.5) == 5
    assert plan.total_updates(samples=25, epochs=2.75) == 5


def test_the_shortest_run_is_one_update():
    assert BatchPlan(10, 1, 1).total_updates(samples=25, epochs=1e-9) == 1


@pytest.mark.parametrize("epochs", [0, -1, float("inf"), float("nan")])
def test_an_invalid_number_of_epochs_is_refused(epochs: float):
    with pytest.raises(ConfigError, match="--epochs must be a number above 0, got"):
        BatchPlan(1, 1, 1).total_updates(10, epochs)


def test_a_run_too_small_for_one_update_is_refused_with_any_number_of_epochs():
    with pytest.raises(ConfigError, match="one update needs 20 samples"):
        BatchPlan(10, 2, 1).total_updates(19, epochs=1000)


def test_a_batch_plan_is_immutable():
    with pytest.raises(FrozenInstanceError):
        BatchPlan(1, 1, 1).replicas = 2  # type: ignore[misc]
