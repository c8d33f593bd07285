"""A median and its bounds, out of repeated measurements."""

import random

from convoy.report.interval import interval_of


def test_equal_values_leave_no_doubt() -> None:
    found = interval_of([2.0] * 5)

    assert (found.low, found.middle, found.high) == (2.0, 2.0, 2.0)


def test_one_outlier_moves_neither_the_median_nor_both_bounds() -> None:
    found = interval_of([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 9.0])

    assert found.middle == 1.0
    assert found.low >= 0.98 and found.high < 9.0


def test_the_bounds_hold_the_true_median_about_as_often_as_they_say() -> None:
    chance = random.Random(1)
    trials = 400
    held = 0
    for _ in range(trials):
        found = interval_of([chance.gauss(1.0, 0.1) for _ in range(9)])
        held += found.low <= 1.0 <= found.high

    # 95 % are said; of 400 a share below 90 % would be 4.6 standard deviations away.
    assert held >= 0.90 * trials
