"""Speed and time left follow from update times alone; the first one never counts."""

import pytest

from convoy.report.throughput import Throughput


class Watch:
    """A clock that a test turns by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def filled(*seconds: float, window: int = 20) -> tuple[Throughput, Watch]:
    watch = Watch()
    throughput = Throughput(64, window, watch)
    for one in seconds:
        watch.now += one
        throughput.take(one)
    return throughput, watch


@pytest.mark.parametrize("seconds", [(), (30.0,)])
def test_nothing_is_known_before_the_second_update(seconds: tuple[float, ...]):
    throughput, _ = filled(*seconds)

    assert throughput.images_per_second is None
    assert throughput.overall is None
    assert throughput.seconds_left(5) is None


def test_the_first_update_is_dropped():
    throughput, _ = filled(30.0, 0.5, 0.5)

    assert throughput.images_per_second == throughput.overall == 128


def test_the_mean_is_of_times_and_not_of_speeds():
    throughput, _ = filled(1.0, 1.0, 3.0)

    assert throughput.images_per_second == 2 * 64 / 4


def test_the_window_forgets_and_the_overall_mean_does_not():
    throughput, _ = filled(9.0, 4.0, 1.0, 1.0, window=2)

    assert throughput.images_per_second == 64
    assert throughput.overall == 3 * 64 / 6


def test_time_left_is_the_pace_of_the_last_updates():
    throughput, _ = filled(9.0, 2.0, 2.0)

    assert throughput.seconds_left(10) == 20
    assert throughput.seconds_left(0) == 0


def test_time_left_runs_down_between_updates_by_one_update_at_most():
    throughput, watch = filled(9.0, 2.0)
    watch.now += 0.5
    soon = throughput.seconds_left(10)
    watch.now += 60

    assert soon == 19.5
    assert throughput.seconds_left(10) == 18


def test_updates_that_take_no_time_have_no_speed():
    throughput, _ = filled(1.0, 0.0)

    assert throughput.images_per_second is None
    assert throughput.seconds_left(3) == 0
