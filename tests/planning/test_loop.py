"""The length of a run, and when reports, checkpoints and validations are due."""

from typing import Any

import pytest

from convoy.config.schema import build_config
from convoy.planning.loop import EventSchedule, LoopPlan, plan_loop
from convoy.planning.topology import BatchPlan


def loop(samples: int = 100, **options: Any) -> LoopPlan:
    config = build_config(options)
    batch = config.batch
    plan = BatchPlan(batch.micro_batch_size, batch.gradient_accumulation, batch.replicas)
    return plan_loop(config, plan, samples)


def due(schedule: EventSchedule, plan: LoopPlan) -> list[int]:
    return [update for update in range(1, plan.updates + 1) if schedule.is_due(update)]


def test_epochs_set_the_length_and_the_remainder_is_dropped():
    plan = loop(samples=103, micro_batch_size=5, gradient_accumulation=2, replicas=2, epoch=3)

    assert (plan.samples, plan.samples_per_update, plan.micro_batches) == (103, 20, 2)
    assert (plan.updates_per_epoch, plan.updates, plan.epochs) == (5, 15, 3)


def test_updates_set_the_length_without_epochs():
    plan = loop(samples=100, micro_batch_size=10, epoch=None, updates=25)

    assert (plan.updates_per_epoch, plan.updates, plan.epochs) == (10, 25, 2.5)


def test_earlier_epochs_are_counted_and_not_repeated():
    plan = loop(samples=100, micro_batch_size=10, epoch=2, epochs_before=2.5)

    assert [plan.epoch_after(update) for update in (0, 5, 20)] == [2.5, 3.0, 4.5]
    assert (plan.first_epoch, loop().first_epoch, plan.epochs) == (3, 0, 2)


def test_a_fraction_of_an_epoch_is_rounded_to_updates():
    plan = loop(samples=100, micro_batch_size=10, epoch=0.25)

    assert (plan.updates, plan.epochs) == (2, 0.2)


def test_the_learning_rate_plan_has_the_length_of_the_run():
    rates = loop(samples=100, micro_batch_size=10, epoch=2, lr=0.2).learning_rate

    assert (rates.updates_per_epoch, rates.updates, rates.config.lr) == (10, 20, 0.2)
    assert rates.rate(10) == pytest.approx(0.1)  # the middle of a cosine


def test_events_are_due_several_times_per_epoch():
    plan = loop(
        samples=100,
        micro_batch_size=10,
        epoch=2,
        logs_per_epoch=4,
        ckpts_per_epoch=2,
        validation_mode="during",
    )

    assert due(plan.reports, plan) == [3, 5, 8, 10, 13, 15, 18, 20]
    assert due(plan.checkpoints, plan) == [5, 10, 15, 20]
    assert due(plan.validations, plan) == [10, 20]


def test_validations_may_skip_epochs_but_not_the_end():
    plan = loop(
        samples=20, micro_batch_size=10, epoch=5, validation_mode="during", validation_frequency=2
    )

    assert due(plan.validations, plan) == [4, 8, 10]


@pytest.mark.parametrize("mode", ["after", "none"])
def test_validation_runs_between_updates_only_in_mode_during(mode: str):
    plan = loop(samples=20, micro_batch_size=10, epoch=5, validation_mode=mode)

    assert due(plan.validations, plan) == []


def test_zero_reports_per_epoch_leave_one_at_the_end():
    plan = loop(samples=100, micro_batch_size=10, epoch=2, logs_per_epoch=0)

    assert due(plan.reports, plan) == [20]


def test_zero_checkpoints_are_never_due():
    plan = loop(samples=100, micro_batch_size=10, epoch=2, ckpts_per_epoch=0)

    assert due(plan.checkpoints, plan) == []


def epochs_saved(epoch: float, **options: Any) -> list[float]:
    """The epochs, of five updates each, after which a checkpoint is due."""
    plan = loop(samples=50, micro_batch_size=10, epoch=epoch, **options)
    return [update / 5 for update in due(plan.checkpoints, plan)]


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        ({"epochs_per_ckpt": 4}, [2, 6, 10]),
        ({"epochs_per_ckpt": 5}, [5, 10]),
        ({"epochs_per_ckpt": 1}, [*range(1, 11)]),
        ({"epochs_per_ckpt": 20}, [10]),
        ({"epochs_per_ckpt": 5, "ckpts_per_epoch": 0}, [5, 10]),
        ({"epochs_per_ckpt": 4, "ckpt_epochs_offset": 0}, [4, 8, 10]),
        ({"epochs_per_ckpt": 4, "ckpt_epochs_offset": 1}, [1, 5, 9, 10]),
        ({"epochs_per_ckpt": 2, "ckpt_epochs_offset": 6}, [6, 8, 10]),
        ({"epochs_per_ckpt": 2, "ckpt_epochs_offset": 11}, [10]),
        ({"ckpt_epochs_offset": 8}, [8, 9, 10]),
        ({"ckpts_per_epoch": 0, "ckpt_epochs_offset": 8}, []),
    ],
)
def test_checkpoints_may_be_several_epochs_apart(options: dict[str, Any], saved: list[int]):
    assert epochs_saved(10, **options) == saved


def test_checkpoint_intervals_are_counted_back_from_the_end():
    assert epochs_saved(2.4, epochs_per_ckpt=1) == [0.4, 1.4, 2.4]


@pytest.mark.parametrize(
    ("options", "averages"),
    [
        ({}, False),
        ({"weight_avg_strategy": "mean"}, True),
        ({"weight_avg_strategy": "exponential", "ckpts_per_epoch": 0}, False),
        ({"weight_avg_strategy": "mean", "ckpts_per_epoch": 0, "epochs_per_ckpt": 2}, True),
    ],
)
def test_averaging_needs_checkpoints(options: dict[str, Any], averages: bool):
    assert loop(**options).averages_checkpoints is averages


def test_reports_may_be_scheduled_by_updates():
    plan = loop(samples=100, micro_batch_size=10, epoch=2, logs_per_epoch=None, log_freq=7)

    assert due(plan.reports, plan) == [7, 14, 20]


def test_a_limit_does_not_change_the_length():
    plan = loop(samples=100, micro_batch_size=10, epoch=2, stop_after=7)

    assert (plan.updates, plan.stop_after) == (20, 7)
    assert plan.learning_rate.updates == 20
