"""A median, and how sure it is: what repeated measurements on a noisy machine are worth."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_DRAWS = 2000
_OUTSIDE = _DRAWS // 40  # on either side of 95 %


@dataclass(frozen=True)
class Interval:
    """A median between the bounds of its 95 % interval."""

    middle: float
    low: float
    high: float


def interval_of(values: Sequence[float]) -> Interval:
    """By bootstrap, with a chance of its own, so that equal values give equal bounds."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(_DRAWS))
    return Interval(median(values), medians[_OUTSIDE], medians[-_OUTSIDE - 1])
