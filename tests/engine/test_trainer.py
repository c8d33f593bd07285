"""The training loop: number of updates, events and their order, and how it stops."""

import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from support.pipelines import digest
from support.small_run import (
    BATCH,
    CPU,
    UPDATES_PER_EPOCH,
    SmallRun,
    plain_training,
    small_plan,
    small_run,
)
from torch import Tensor

from convoy.data.loader import LoaderOptions, SyntheticFeed
from convoy.engine.metrics import UpdateClock
from convoy.engine.step_guard import StepDecision
from convoy.engine.trainer import Trainer
from convoy.errors import NotFiniteError, StorageError
from convoy.events import Began, Reported, StopRequest, Updated
from convoy.optim.update_rules import StepContext
from convoy.parallel.executor import MicroBatchResult
from convoy.planning.loop import EventSchedule


@pytest.fixture(autouse=True)
def threads_before() -> set[threading.Thread]:
    """Threads of other tests, whose infeeds were not closed."""
    return set(threading.enumerate())


def infeed_threads(before: set[threading.Thread]) -> list[str]:
    threads = set(threading.enumerate()) - before
    return [item.name for item in threads if item.name.startswith("infeed")]


def short_names(run: SmallRun) -> str:
    """The events in short: B (began), U (updated), R (reported) with their updates."""
    return " ".join(f"{type(event).__name__[0]}{event.update}" for event in run.events)


NEVER = EventSchedule(0, 1, 10)


def digests(weights: dict[str, Tensor]) -> dict[str, str]:
    return {name: digest(weight) for name, weight in weights.items()}


def reports(run: SmallRun) -> list[Reported]:
    return [event for event in run.events if isinstance(event, Reported)]


@pytest.mark.parametrize("updates", [1, 4, 10])
def test_the_trainer_runs_the_planned_number_of_updates(updates: int) -> None:
    run = small_run(small_plan(updates))
    reason = run.train()

    assert reason == "done"
    assert run.updates_with(Updated) == list(range(1, updates + 1))


def test_the_trainer_matches_plain_torch() -> None:
    plan = small_plan(10)
    run, plain = small_run(plan, norm="group"), plain_training(plan)
    run.train()

    torch.testing.assert_close(run.weights(), plain.weights, rtol=1e-4, atol=1e-5)


def test_a_report_has_the_means_since_the_previous_one() -> None:
    plan = small_plan(10, reports=2)
    run, plain = small_run(plan, norm="group"), plain_training(plan)
    run.train()
    per_report = 2 * plan.micro_batches

    assert run.updates_with(Reported) == [2, 4, 6, 8, 10]
    for number, report in enumerate(reports(run)):
        micro_batches = slice(number * per_report, (number + 1) * per_report)
        assert report.loss == pytest.approx(sum(plain.losses[micro_batches]) / per_report, rel=1e-4)
        assert report.accuracy == sum(plain.correct[micro_batches]) / (
            per_report * BATCH.micro_batch_size
        )


def test_reports_have_epochs_and_learning_rates() -> None:
    plan = small_plan(6, reports=4)
    run = small_run(plan)
    run.train()
    rates = [report.learning_rate for report in reports(run)]

    assert [report.epoch for report in reports(run)] == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5]
    assert rates == pytest.approx([0.1 * 0.95**update for update in range(6)])


def test_the_last_report_covers_the_remaining_updates() -> None:
    run = small_run(small_plan(7, reports=1))
    run.train()

    assert run.updates_with(Reported) == [4, 7]


def test_events_are_in_order() -> None:
    run = small_run(small_plan(5))
    run.train()

    assert short_names(run) == "B0 U1 R2 U2 U3 R4 U4 R5 U5"
    assert run.events[0] == Began(0, 5, UPDATES_PER_EPOCH, BATCH.samples_per_update)


class StoppingUpdate:
    """An update step that requests a stop while it runs."""

    def __init__(self, trainer: Trainer, stop: StopRequest, stop_at: int) -> None:
        self.inner = trainer.update_step
        self.guard = trainer.update_step.guard
        self.stop = stop
        self.stop_at = stop_at
        self.micro_batches: list[int] = []

    def __call__(
        self, micro_batches: Iterable[tuple[Tensor, Tensor]], context: StepContext
    ) -> tuple[list[MicroBatchResult], StepDecision]:
        batches = []
        for batch in micro_batches:
            batches.append(batch)
            if len(self.micro_batches) + 1 == self.stop_at:
                self.stop.request("preempted")
        self.micro_batches.append(len(batches))
        return self.inner(batches, context)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_request_lets_the_update_finish(
    workers: int, threads_before: set[threading.Thread]
) -> None:
    stop, run = StopRequest(), small_run(small_plan(10), options=LoaderOptions(workers, 3))
    update_step = StoppingUpdate(run.trainer, stop, stop_at=3)
    run.trainer.update_step = update_step  # type: ignore[assignment]
    reason = run.train(0, stop)

    assert reason == "preempted"
    assert short_names(run) == "B0 U1 R2 U2 U3"
    assert update_step.micro_batches == [BATCH.gradient_accumulation] * 3
    assert infeed_threads(threads_before) == []


def test_a_stop_request_after_an_update_starts_no_other() -> None:
    stop, run = StopRequest(), small_run(small_plan(10))
    run.on(Updated, 4, lambda: stop.request("interrupted"))

    assert run.train(0, stop) == "interrupted"
    assert run.updates_with(Updated)[-1] == 4


def test_a_stop_request_before_the_start_runs_no_update() -> None:
    stop, run = StopRequest(), small_run(small_plan(10))
    before = run.weights()
    stop.request("preempted")

    assert run.train(2, stop) == "preempted"
    assert short_names(run) == "B2"
    assert all(torch.equal(item, before[name]) for name, item in run.weights().items())


def test_a_stop_request_during_the_last_update_has_no_effect() -> None:
    stop, run = StopRequest(), small_run(small_plan(3))
    run.on(Updated, 3, lambda: stop.request("preempted"))

    assert run.train(0, stop) == "done"


@pytest.mark.parametrize(
    ("stop_after", "reason", "last"),
    [(1, "limit", 1), (4, "limit", 4), (6, "done", 6), (7, "done", 6), (None, "done", 6)],
)
def test_stop_after_limits_the_number_of_updates(
    stop_after: int | None, reason: str, last: int
) -> None:
    run = small_run(small_plan(6, stop_after=stop_after))

    assert run.train() == reason
    assert run.updates_with(Updated)[-1] == last


def test_a_limit_that_has_passed_has_no_effect() -> None:
    run = small_run(small_plan(6, stop_after=3))

    assert run.train(3) == "done"
    assert run.updates_with(Updated) == [4, 5, 6]


def test_a_complete_run_runs_no_update() -> None:
    run = small_run(small_plan(6))

    assert run.train(6) == "done"
    assert short_names(run) == "B6"


@pytest.mark.parametrize("stop_at", [1, 3, 4, 7])
def test_a_stopped_run_resumes_with_the_same_bits(stop_at: int) -> None:
    full, parts = small_run(small_plan(10)), small_run(small_plan(10, stop_after=stop_at))
    full.train()
    parts.train()
    parts.train(stop_at)
    means = [
        [(report.update, report.loss, report.accuracy) for report in reports(run)]
        for run in (full, parts)
    ]

    assert all(torch.equal(item, full.weights()[name]) for name, item in parts.weights().items())
    assert means[0] == means[1]


@pytest.mark.parametrize(
    "options", [LoaderOptions(1, 1), LoaderOptions(2, 3), LoaderOptions(8, 30)]
)
def test_loader_workers_change_no_bit(
    options: LoaderOptions, threads_before: set[threading.Thread]
) -> None:
    without, with_workers = small_run(small_plan(6)), small_run(small_plan(6), options=options)
    without.train()
    with_workers.train()

    assert all(
        torch.equal(item, without.weights()[name]) for name, item in with_workers.weights().items()
    )
    assert infeed_threads(threads_before) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_loss_ends_the_run_with_a_suggested_fix(
    value: float, threads_before: set[threading.Thread]
) -> None:
    run = small_run(small_plan(10), options=LoaderOptions(2, 3))
    weight = run.network.named_weights()["head.weight"]
    run.on(Updated, 3, lambda: weight.data.fill_(value))
    with pytest.raises(NotFiniteError) as caught:
        run.train()
    text = str(caught.value)

    assert text.startswith("update 4: ")
    assert "layer head are not finite" in text and "samples " in text
    assert "--lr (now 0.0857375)" in text and "--on-nonfinite skip" in text
    assert short_names(run) == "B0 U1 R2 U2 U3"
    assert infeed_threads(threads_before) == []


def test_a_failing_consumer_ends_the_loop_and_leaves_no_threads(
    threads_before: set[threading.Thread],
) -> None:
    run = small_run(small_plan(10), options=LoaderOptions(2, 3))

    def fail() -> None:
        raise StorageError("the disk is full")

    run.on(Updated, 2, fail)
    with pytest.raises(StorageError, match="disk is full") as caught:
        run.train()

    assert caught.tb is not None  # keeps the frames alive
    assert infeed_threads(threads_before) == []


def test_synthetic_data_can_be_trained_on() -> None:
    run = small_run(small_plan(3))
    synthetic = SyntheticFeed((4, 3, 8, 8), classes=7, device=CPU)
    run.trainer.micro_batches = replace(run.trainer.micro_batches, feed=synthetic)

    assert run.train() == "done"
    assert run.updates_with(Updated) == [1, 2, 3]


def test_the_first_update_is_warm_up_and_not_counted() -> None:
    clock = UpdateClock(began=0.0)
    for seconds in (60.0, 2.0, 3.0):
        clock.add(seconds)

    assert clock.rate(samples_per_update=10) == pytest.approx(2 * 10 / 5.0)


def test_a_single_update_is_counted() -> None:
    clock = UpdateClock(began=0.0)
    clock.add(5.0)

    assert clock.rate(samples_per_update=10) == pytest.approx(2.0)


def test_each_rate_covers_the_updates_since_the_previous_rate() -> None:
    clock = UpdateClock(began=0.0)
    clock.add(9.0)
    clock.rate(10)
    for seconds in (1.0, 3.0):
        clock.add(seconds)

    assert clock.rate(samples_per_update=10) == pytest.approx(2 * 10 / 4.0)


def test_reports_have_speed_and_time() -> None:
    run = small_run(small_plan(3, reports=4))
    run.train()
    seconds = [report.seconds for report in reports(run)]

    assert all(report.images_per_second > 0 for report in reports(run))
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


def test_device_iterations_run_in_a_loop_that_ends_at_events() -> None:
    plan = replace(small_plan(10, reports=2), device_iterations=4)

    assert [plan.loop_length(done) for done in range(4)] == [2, 1, 2, 1]
    assert replace(plan, reports=NEVER).loop_length(0) == 4
    assert replace(plan, reports=NEVER).loop_length(8) == 2
    assert replace(plan, reports=NEVER, stop_after=3).loop_length(0) == 3
    assert replace(plan, reports=NEVER, checkpoints=EventSchedule(1, 2, 10)).loop_length(1) == 1


def test_device_iterations_change_neither_events_nor_weights() -> None:
    plan = small_plan(10, reports=2)
    single, looped = small_run(plan), small_run(replace(plan, device_iterations=3))
    single.train()
    looped.train()

    assert short_names(looped) == short_names(single)
    assert digests(looped.weights()) == digests(single.weights())


def test_a_stop_takes_effect_after_the_loop() -> None:
    plan = replace(small_plan(10), reports=NEVER, device_iterations=4)
    run = small_run(plan)
    stop = StopRequest()
    updates = run.trainer.updates(0, stop)

    first = next(updates)
    stop.request("preempted")
    rest = list(updates)

    assert (first.updated.update, [result.updated.update for result in rest]) == (1, [2, 3, 4])


def test_the_updates_before_an_error_in_a_loop_are_reported() -> None:
    plan = replace(small_plan(10), reports=NEVER, device_iterations=5)
    run = small_run(plan)
    first_updates = run.trainer._update
    results = []

    def fail_at_third(batches: Iterable[object]) -> object:
        if run.trainer._done == 2:
            raise NotFiniteError("update 3")
        return first_updates(batches)

    run.trainer._update = fail_at_third
    with pytest.raises(NotFiniteError, match="update 3"):
        for result in run.trainer.updates(0, StopRequest()):
            results.append(result.updated.update)

    assert results == [1, 2]
