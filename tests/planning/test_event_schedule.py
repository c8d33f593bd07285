"""Events several times per epoch and at the end, for all small cases."""

from itertools import pairwise

from support.sweeps import sweep

from convoy.planning.loop import EventSchedule


def due(times: int, period: int, end: int, first: int = 0) -> list[int]:
    schedule = EventSchedule(times, period, end, first)
    return [update for update in range(1, end + 1) if schedule.is_due(update)]


@sweep("period", range(1, 13))
def test_every_complete_period_has_the_configured_number_of_events(period: int):
    for times in range(1, period + 1):
        actual = due(times, period, end=4 * period)
        counts = [
            sum(n * period < update <= (n + 1) * period for update in actual) for n in range(4)
        ]

        assert counts == [times] * 4


@sweep("period", range(1, 13))
def test_more_events_than_updates_means_every_update(period: int):
    for times in range(period, 3 * period):
        assert due(times, period, end=2 * period) == list(range(1, 2 * period + 1))


@sweep("period", range(1, 13))
def test_the_event_is_due_at_the_end_and_at_the_end_of_each_period(period: int):
    for times in range(1, period + 3):
        for end in range(1, 3 * period + 2):
            actual = due(times, period, end)

            assert actual[-1] == end
            assert set(range(period, end + 1, period)) <= set(actual)


@sweep("period", range(1, 13))
def test_events_are_evenly_spaced(period: int):
    for times in range(1, period + 1):
        gaps = {after - before for before, after in pairwise([0, *due(times, period, 3 * period)])}

        assert max(gaps) - min(gaps) <= 1


def test_zero_events_are_never_due():
    assert due(0, 5, 20) == []


def test_a_run_that_ends_within_a_period_has_a_last_event():
    assert due(2, 10, 13) == [5, 10, 13]


@sweep("period", range(1, 8))
@sweep("first", range(10))
def test_a_later_start_shifts_all_events(period: int, first: int):
    for times in range(1, period + 2):
        unshifted = due(times, period, end=3 * period)
        shifted = [first] * (first > 0) + [first + update for update in unshifted]

        assert due(times, period, first + 3 * period, first) == shifted


def test_before_the_start_only_the_end_is_due():
    assert due(4, 8, end=6, first=7) == [6]


def test_zero_events_are_never_due_with_any_start():
    assert due(0, 5, 20, first=3) == []


def test_a_run_shorter_than_its_period_is_due_at_its_end():
    assert due(1, 10, 3) == [3]
