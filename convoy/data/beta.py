"""The larger one of c and 1 − c for c ~ Beta(α, α): any α > 0, four even numbers, no rejection.

r = √(1 − U^(1/(α + ½))) · cos 2πV      (1 + r)/2 ~ Beta(α + 1, α + 1), by Ulrich's polar method
gamma(α) = gamma(α + 1) · U^(1/α)       both gammas are brought down; their sum cancels out
c / (1 − c) = (1 + r) / (1 − r) · (U₁ / U₂)^(1/α)
"""

import math

import numpy as np
import numpy.typing as npt

from convoy.chance import F64, uniform

_BELOW_ONE = 1 - 2.0**-53


def larger_shares(alpha: float, stream: int, *counters: npt.ArrayLike) -> F64:
    """One for each tuple of counters, in [½, 1]. Logarithms hold what a small α makes of chance."""
    radius, angle, first, second = (1 - uniform(stream, *counters, draw) for draw in range(4))
    reach = np.sqrt(-np.expm1(np.log(radius) / (alpha + 0.5)))
    across = np.clip(reach * np.cos(2 * math.pi * angle), -_BELOW_ONE, _BELOW_ONE)
    with np.errstate(over="ignore"):  # an endless ratio is a share of 1
        odds = 2 * np.arctanh(across) + (np.log(first) - np.log(second)) / alpha
    shares: F64 = 1 / (1 + np.exp(-np.abs(odds)))
    return shares
