"""Mixup's lambda, the larger of x and 1 − x for x from Beta(α, α): distribution and extremes."""

import math

import numpy as np
import pytest

from convoy.data.mix import sample_mixup_lambda
from convoy.rng import F64, key

STREAM = key(3, "beta")
DRAWS = 100_000
# The Dvoretzky–Kiefer–Wolfowitz bound of the distance between the empirical and the expected
# distribution, exceeded once in 10^9 streams. The stream is fixed, so results never change.
MAX_DEVIATION = math.sqrt(math.log(2e9) / (2 * DRAWS))
# Above this, 1 − lambda has at least 12 significant bits; below, float64 has too few next to 1.
SMALLEST = 2.0**-40

ALPHAS = [0.02, 0.1, 0.2, 0.4, 0.5, 0.9, 1.0, 1.5, 2.0, 7.3, 60.0, 1000.0]
CLOSED_FORMS = {
    0.5: lambda smaller: 4 / math.pi * np.arcsin(np.sqrt(smaller)),
    1.0: lambda smaller: 2 * smaller,
    2.0: lambda smaller: 6 * smaller**2 - 4 * smaller**3,
    3.0: lambda smaller: 2 * (10 * smaller**3 - 15 * smaller**4 + 6 * smaller**5),
}


def folded_beta_cdf(alpha: float, smaller: F64) -> F64:
    """The distribution function of d = 1 − lambda, by the trapezoid rule.

    For α ≥ 1 the density (d(1 − d))^(α − 1) is smooth and integrated over d. Otherwise it has a
    pole, and is integrated over t = (2d)^α, where it becomes (2 − 2d)^(α − 1).
    """
    nodes = np.linspace(0, 1, 200_001)  # of 2d or t
    if alpha >= 1:
        heights, points = (nodes * (2 - nodes)) ** (alpha - 1), 2 * smaller
    else:
        heights, points = (2 - nodes ** (1 / alpha)) ** (alpha - 1), (2 * smaller) ** alpha
    sums = np.concatenate([[0], np.cumsum(heights[1:] + heights[:-1])])
    below: F64 = np.interp(points, nodes, sums / sums[-1])
    return below


@pytest.mark.parametrize("alpha", CLOSED_FORMS)
def test_the_reference_distribution_matches_closed_forms(alpha: float) -> None:
    smaller = np.linspace(0, 0.5, 1001)

    assert np.abs(folded_beta_cdf(alpha, smaller) - CLOSED_FORMS[alpha](smaller)).max() < 1e-6


@pytest.mark.parametrize("alpha", ALPHAS)
def test_mixup_lambda_follows_the_folded_beta_distribution(alpha: float) -> None:
    lambdas = sample_mixup_lambda(alpha, STREAM, np.arange(DRAWS))
    smaller = np.sort(1 - lambdas)
    below = np.arange(DRAWS) / DRAWS  # the fraction of draws below each one
    deviations = np.abs(folded_beta_cdf(alpha, smaller) - below)[smaller > SMALLEST]

    assert lambdas.min() >= 0.5 and lambdas.max() <= 1
    assert len(deviations) > DRAWS / 3
    assert deviations.max() < MAX_DEVIATION + 1 / DRAWS


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-3, 1e3, 1e12])
def test_no_alpha_is_too_small_or_too_large(alpha: float) -> None:
    lambdas = sample_mixup_lambda(alpha, STREAM, np.arange(1000))

    assert np.isfinite(lambdas).all()
    assert lambdas.min() >= 0.5 and lambdas.max() <= 1


@pytest.mark.parametrize("alpha", [5e-324, 0.2, 1.0])
def test_extreme_random_numbers_are_valid(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = np.array([0.0, 0.25, 0.5, 1 - 2.0**-53])
    grid = np.stack(np.meshgrid(ends, ends, ends, ends)).reshape(4, -1)
    monkeypatch.setattr("convoy.data.mix.uniform", lambda _, draw: grid[draw])
    lambdas = sample_mixup_lambda(alpha, STREAM)

    assert lambdas.shape == (256,)
    assert ((lambdas >= 0.5) & (lambdas <= 1)).all()


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
    lambdas = sample_mixup_lambda(1.0, STREAM, np.arange(400)[:, None], np.arange(250))
    noise = 1 / math.sqrt(lambdas.size)  # standard deviation of the correlation
    for values, neighbors in ((lambdas[:, 1:], lambdas[:, :-1]), (lambdas[1:], lambdas[:-1])):
        assert abs(np.corrcoef(values.ravel(), neighbors.ravel())[0, 1]) < 6 * noise
