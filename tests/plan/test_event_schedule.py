"""So many times per epoch, and at the end: every small case."""

from itertools import pairwise

from support.sweeps import sweep

from convoy.plan.loop import EventSchedule


def due(times: int, period: int, end: int, first: int = 0) -> list[int]:
    rhythm = EventSchedule(times, period, end, first)
    return [update for update in range(1, end + 1) if rhythm.is_due(update)]


@sweep("period", range(1, 13))
def test_every_whole_period_has_exactly_its_times(period: int):
    for times in range(1, period + 1):
        actual = due(times, period, end=4 * period)
        counts = [sum(p * period < u <= (p + 1) * period for u in actual) for p in range(4)]

        assert counts == [times] * 4


@sweep("period", range(1, 13))
def test_more_times_than_updates_is_every_update(period: int):
    for times in range(period, 3 * period):
        assert due(times, period, end=2 * period) == list(range(1, 2 * period + 1))


@sweep("period", range(1, 13))
def test_the_end_and_every_end_of_a_period_are_always_due(period: int):
    for times in range(1, period + 3):
        for end in range(1, 3 * period + 2):
            actual = due(times, period, end)

            assert actual[-1] == end
            assert set(range(period, end + 1, period)) <= set(actual)


@sweep("period", range(1, 13))
def test_the_times_are_evenly_spread(period: int):
    for times in range(1, period + 1):
        gaps = {after - before for before, after in pairwise([0, *due(times, period, 3 * period)])}

        assert max(gaps) - min(gaps) <= 1


def test_no_times_is_never_not_even_at_the_end():
    assert due(0, 5, 20) == []


def test_a_run_that_ends_inside_a_period_is_due_once_more():
    assert due(2, 10, 13) == [5, 10, 13]


@sweep("period", range(1, 8))
@sweep("first", range(10))
def test_periods_that_begin_later_are_the_same_ones_moved(period: int, first: int):
    for times in range(1, period + 2):
        usual = due(times, period, end=3 * period)
        moved = [first] * (first > 0) + [first + update for update in usual]

        assert due(times, period, first + 3 * period, first) == moved


def test_before_the_first_time_only_the_end_is_due():
    assert due(4, 8, end=6, first=7) == [6]


def test_no_times_is_never_wherever_the_periods_begin():
    assert due(0, 5, 20, first=3) == []


def test_a_run_shorter_than_its_period_is_due_at_its_end():
    assert due(1, 10, 3) == [3]
