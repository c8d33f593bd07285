"""The larger share of Beta(α, α): its distribution for small and large α, and its extremes."""

import math

import numpy as np
import pytest

from convoy.data.mix import sample_mixup_lambda
from convoy.rng import F64, key

STREAM = key(3, "beta")
DRAWS = 100_000
# Dvoretzky, Kiefer, Wolfowitz: the draws below some point and the chance of it lie farther apart
# than this once in 10^9 streams. The stream is fixed, so a test that passes once passes always.
FAR = math.sqrt(math.log(2e9) / (2 * DRAWS))
# Smaller shares are known to a part in 4,096 or better; below, 64 bits hold too little beside 1.
LEAST = 2.0**-40

ALPHAS = [0.02, 0.1, 0.2, 0.4, 0.5, 0.9, 1.0, 1.5, 2.0, 7.3, 60.0, 1000.0]
CLOSED = {
    0.5: lambda smaller: 4 / math.pi * np.arcsin(np.sqrt(smaller)),
    1.0: lambda smaller: 2 * smaller,
    2.0: lambda smaller: 6 * smaller**2 - 4 * smaller**3,
    3.0: lambda smaller: 2 * (10 * smaller**3 - 15 * smaller**4 + 6 * smaller**5),
}


def chance_below(alpha: float, smaller: F64) -> F64:
    """Of 1 − c by the trapezoid rule: over d where the density (d(1 − d))^(α − 1) is smooth, over
    t = (2d)^α where it has a pole; there it becomes (2 − 2d)^(α − 1).
    """
    nodes = np.linspace(0, 1, 200_001)  # 2d, or t
    if alpha >= 1:
        heights, places = (nodes * (2 - nodes)) ** (alpha - 1), 2 * smaller
    else:
        heights, places = (2 - nodes ** (1 / alpha)) ** (alpha - 1), (2 * smaller) ** alpha
    sums = np.concatenate([[0], np.cumsum(heights[1:] + heights[:-1])])
    below: F64 = np.interp(places, nodes, sums / sums[-1])
    return below


@pytest.mark.parametrize("alpha", CLOSED)
def test_the_reference_distribution_matches_closed_forms(alpha: float) -> None:
    smaller = np.linspace(0, 0.5, 1001)

    assert np.abs(chance_below(alpha, smaller) - CLOSED[alpha](smaller)).max() < 1e-6


@pytest.mark.parametrize("alpha", ALPHAS)
def test_mixup_lambda_follows_the_folded_beta_distribution(alpha: float) -> None:
    shares = sample_mixup_lambda(alpha, STREAM, np.arange(DRAWS))
    smaller = np.sort(1 - shares)
    below = np.arange(DRAWS) / DRAWS  # the share of draws below each one
    off = np.abs(chance_below(alpha, smaller) - below)[smaller > LEAST]

    assert shares.min() >= 0.5 and shares.max() <= 1
    assert len(off) > DRAWS / 3
    assert off.max() < FAR + 1 / DRAWS


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-3, 1e3, 1e12])
def test_no_alpha_is_too_small_or_too_large(alpha: float) -> None:
    shares = sample_mixup_lambda(alpha, STREAM, np.arange(1000))

    assert np.isfinite(shares).all()
    assert shares.min() >= 0.5 and shares.max() <= 1


@pytest.mark.parametrize("alpha", [5e-324, 0.2, 1.0])
def test_extreme_random_numbers_are_valid(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = np.array([0.0, 0.25, 0.5, 1 - 2.0**-53])
    grid = np.stack(np.meshgrid(ends, ends, ends, ends)).reshape(4, -1)
    monkeypatch.setattr("convoy.data.mix.uniform", lambda _, draw: grid[draw])
    shares = sample_mixup_lambda(alpha, STREAM)

    assert shares.shape == (256,)
    assert ((shares >= 0.5) & (shares <= 1)).all()


def test_mixup_lambdas_never_change() -> None:
    expected = [0.9879624667528781, 0.5522385488761815, 0.989988577007913]

    assert sample_mixup_lambda(0.2, STREAM, 7, np.arange(3)).tolist() == pytest.approx(
        expected, 1e-12
    )


def test_each_lambda_is_a_function_of_its_counters() -> None:
    full = sample_mixup_lambda(0.3, STREAM, np.arange(20)[:, None], np.arange(8))

    assert all(
        sample_mixup_lambda(0.3, STREAM, number, sample) == full[number, sample]
        for number in range(20)
        for sample in range(8)
    )


def test_neighbors_are_independent() -> None:
    shares = sample_mixup_lambda(1.0, STREAM, np.arange(400)[:, None], np.arange(250))
    noise = 1 / math.sqrt(shares.size)  # deviation of the correlation of independent numbers
    for item, other in ((shares[:, 1:], shares[:, :-1]), (shares[1:], shares[:-1])):
        assert abs(np.corrcoef(item.ravel(), other.ravel())[0, 1]) < 6 * noise
