"""Compare two things honestly on a noisy machine: pair by pair, the median ratio, its interval."""

import random
from statistics import median


def ratio_with_interval(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Median of ours / theirs over the pairs, and its 95 % interval by bootstrap."""
    return median_with_interval([a / b for a, b in zip(ours, theirs, strict=True)])


def median_with_interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and its 95 % interval by bootstrap."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(2000))
    return median(values), medians[50], medians[-51]
