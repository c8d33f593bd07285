"""Compare two things honestly on a noisy machine: pair by pair, the median ratio, its interval."""

from convoy.report.interval import interval_of


def ratio_with_interval(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Median of ours / theirs over the pairs, and its 95 % interval by bootstrap."""
    return median_with_interval([a / b for a, b in zip(ours, theirs, strict=True)])


def median_with_interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and its 95 % interval by bootstrap."""
    found = interval_of(values)
    return found.middle, found.low, found.high
