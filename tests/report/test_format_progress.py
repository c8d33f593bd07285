"""The progress of a run is computed from its events, and the throughput from update times."""

import pytest

from convoy.events import Began, Ended, Reported, Updated, Validated
from convoy.report.format import ProgressState, Throughput


@pytest.mark.parametrize(
    ("update", "epoch"), [(0, 1), (1, 1), (250, 1), (251, 2), (1249, 5), (1250, 5)]
)
def test_the_epoch_changes_with_its_first_update(update: int, epoch: int):
    state = ProgressState()
    state.handle_event(Began(update, 1250, 250, 64))

    assert (state.epoch, state.epochs) == (epoch, 5)


def test_an_incomplete_last_epoch_counts():
    state = ProgressState()
    state.handle_event(Began(0, 251, 250, 64))

    assert state.epochs == 2


def test_epochs_before_the_run_are_counted():
    state = ProgressState()
    state.handle_event(Began(251, 500, 250, 64, first_epoch=3))

    assert (state.epoch, state.epochs) == (5, 5)


def test_all_values_are_unknown_before_the_run_starts():
    state = ProgressState()

    assert (state.epoch, state.epochs, state.update) == (1, 1, 0)
    assert state.images_per_second is None
    assert state.seconds_left is None


def test_the_reported_throughput_replaces_the_measured_one():
    state = ProgressState()
    state.handle_event(Began(0, 10, 5, 64))
    state.handle_event(Updated(1, 9.0))
    state.handle_event(Updated(2, 0.5))
    measured = state.images_per_second
    state.handle_event(Reported(2, 0.4, 2.0, 0.1, 0.1, 77.0, 9.5))

    assert (measured, state.images_per_second) == (128, 77)


def test_only_the_latest_event_of_each_type_is_stored():
    state = ProgressState()
    validated = Validated(5, 1.0, 0.5, 0.9, 1.2, 100, 1.0, 100.0)
    state.handle_event(Validated(4, 0.8, 0.4, 0.8, 1.3, 100, 1.0, 100.0))
    state.handle_event(validated)
    state.handle_event(Ended(6, "done"))

    assert state.validated == validated
    assert state.update == 6


class ManualClock:
    """A clock that a test advances manually."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def measure(*seconds: float, window: int = 20) -> tuple[Throughput, ManualClock]:
    clock = ManualClock()
    throughput = Throughput(64, window, clock)
    for second in seconds:
        clock.now += second
        throughput.add(second)
    return throughput, clock


@pytest.mark.parametrize("seconds", [(), (30.0,)])
def test_throughput_is_unknown_before_the_second_update(seconds: tuple[float, ...]):
    throughput, _ = measure(*seconds)

    assert throughput.images_per_second is None
    assert throughput.mean_images_per_second is None
    assert throughput.seconds_left(5) is None


def test_the_first_update_is_excluded_from_the_throughput():
    throughput, _ = measure(30.0, 0.5, 0.5)

    assert throughput.images_per_second == throughput.mean_images_per_second == 128


def test_the_throughput_is_the_mean_over_times():
    throughput, _ = measure(1.0, 1.0, 3.0)

    assert throughput.images_per_second == 2 * 64 / 4


def test_only_the_overall_mean_includes_updates_before_the_window():
    throughput, _ = measure(9.0, 4.0, 1.0, 1.0, window=2)

    assert throughput.images_per_second == 64
    assert throughput.mean_images_per_second == 3 * 64 / 6


def test_time_left_is_computed_from_the_last_updates():
    throughput, _ = measure(9.0, 2.0, 2.0)

    assert throughput.seconds_left(10) == 20
    assert throughput.seconds_left(0) == 0


def test_time_left_counts_down_by_at_most_one_update_between_updates():
    throughput, clock = measure(9.0, 2.0)
    clock.now += 0.5
    after_half_a_second = throughput.seconds_left(10)
    clock.now += 60

    assert after_half_a_second == 19.5
    assert throughput.seconds_left(10) == 18


def test_updates_that_take_no_time_have_no_throughput():
    throughput, _ = measure(1.0, 0.0)

    assert throughput.images_per_second is None
    assert throughput.seconds_left(3) == 0
