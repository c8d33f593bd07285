"""The distributions of cutmix: frequency, size and position of boxes, within sampling error."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from convoy.config.sections.data import MixingConfig
from convoy.data.mix import CutmixBox, Mixing, sample_cutmix_lambda

DRAWS = 10_000
SIDE = 1000  # large, so that rounding to pixels is negligible
# Six standard deviations: exceeded once in 10^9 runs. The seed is fixed, so results never change.
DEVIATIONS = 6
# The same for an empirical distribution, by the Dvoretzky–Kiefer–Wolfowitz inequality.
MAX_DEVIATION = math.sqrt(math.log(2e9) / (2 * DRAWS))
UNIFORM = MixingConfig(cutmix_lambda_low=0.2, cutmix_lambda_high=0.8)
HALF = MixingConfig(cutmix_lambda_low=0.5, cutmix_lambda_high=0.5)

Cdf = Callable[[float], float]


@cache
def boxes(mixing: MixingConfig, side: int = SIDE, draws: int = DRAWS) -> list[CutmixBox | None]:
    sampler = Mixing(mixing, seed=11, image_size=side)
    samples = [sampler.sample(number % 7, number, 4) for number in range(draws)]
    return [mix.box if mix else None for mix in samples]


def sample_lambdas(mixing: MixingConfig) -> npt.NDArray[np.float64]:
    return np.array([1.0 if box is None else box.lam for box in boxes(mixing)])


def max_deviation(found: npt.NDArray[np.float64], cdf: Cdf) -> float:
    """The largest distance between the empirical and the expected distribution function."""
    points = np.linspace(0, 1, 501)
    return max(abs((found <= point).mean() - cdf(point)) for point in points)


def test_cutmix_lambda_is_uniform_between_the_bounds() -> None:
    found = sample_lambdas(UNIFORM)
    # Rounding moves a corner by at most half a pixel, and lambda by (2 · 1000 + 1) / 1000².
    margin = (2 * SIDE + 1) / SIDE**2

    assert found.min() >= 0.2 - margin and found.max() <= 0.8 + margin
    deviation = max_deviation(found, lambda point: min(max((point - 0.2) / 0.6, 0), 1))
    assert deviation < MAX_DEVIATION + margin / 0.6


@pytest.mark.parametrize("version", [None, 2])
def test_equal_bounds_give_a_constant_lambda(version: int | None) -> None:
    found = sample_lambdas(replace(HALF, cutmix_version=version))

    assert np.abs(found - 0.5).max() <= (2 * SIDE + 1) / SIDE**2


def test_version_two_always_takes_the_lower_bound() -> None:
    mixing = replace(UNIFORM, cutmix_version=2)

    assert {sample_cutmix_lambda(mixing, first, 0.3) for first in (0.0, 0.5, 0.99)} == {0.2}


@pytest.mark.parametrize("bound", [0.5, 0.7, 0.85, 0.95])
def test_version_one_skips_some_and_samples_the_rest_logarithmically(bound: float) -> None:
    mixing = MixingConfig(cutmix_lambda_low=bound, cutmix_lambda_high=bound, cutmix_version=1)
    skipped = max(0.0, 1.55 * bound - 0.96)
    grid = (np.arange(200) + 0.5) / 200
    found = np.array(
        [[sample_cutmix_lambda(mixing, first, second) for first in grid] for second in grid]
    )

    assert (found == 1).mean() == pytest.approx(skipped, abs=1 / 200)
    # With v uniform in [e⁻⁴, 1), P(1 + ln(v)/4 ≤ x) is P(v ≤ e^(4x − 4)).
    lowest = math.exp(-4)
    for point in np.linspace(0, 0.999, 50):
        below = (math.exp(4 * point - 4) - lowest) / (1 - lowest)
        fraction = (found[found < 1] <= point).mean()

        assert fraction == pytest.approx(below, abs=1 / 100)


def test_version_one_samples_follow_its_distribution() -> None:
    found = sample_lambdas(replace(HALF, cutmix_version=1))
    margin, lowest = (2 * SIDE + 1) / SIDE**2, math.exp(-4)

    def cdf(point: float) -> float:
        return (math.exp(4 * point - 4) - lowest) / (1 - lowest)

    # Rounding to pixels adds at most the largest density, 4 / (1 − e⁻⁴), times the margin.
    assert max_deviation(found, cdf) < MAX_DEVIATION + margin * 4 / (1 - lowest)


@pytest.mark.parametrize("version", [None, 1, 2])
def test_extreme_random_numbers_stay_within_the_image(version: int | None) -> None:
    for low in (0.0, 0.3, 1.0):
        mixing = MixingConfig(cutmix_lambda_low=low, cutmix_lambda_high=1.0, cutmix_version=version)
        for first in (0.0, 1 - 2.0**-53):
            for second in (0.0, 1 - 2.0**-53):
                assert 0 <= sample_cutmix_lambda(mixing, first, second) <= 1


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.35, 0.9, 1.0])
@pytest.mark.parametrize("version", [None, 2])
def test_cutmix_is_skipped_with_the_configured_probability(
    probability: float, version: int | None
) -> None:
    mixing = replace(HALF, cutmix_disable_prob=probability, cutmix_version=version)
    skipped = sum(box is None for box in boxes(mixing))
    noise = math.sqrt(DRAWS * probability * (1 - probability))  # standard deviation of the count

    assert abs(skipped - DRAWS * probability) <= DEVIATIONS * noise


def test_skipping_does_not_change_the_other_boxes() -> None:
    found = boxes(replace(UNIFORM, cutmix_disable_prob=0.5))
    cut = np.array([box.lam for box in found if box is not None])
    deviation = max_deviation(cut, lambda point: min(max((point - 0.2) / 0.6, 0), 1))
    margin = (2 * SIDE + 1) / SIDE**2

    assert deviation < math.sqrt(math.log(2e9) / (2 * len(cut))) + margin / 0.6
    assert all(box in (None, other) for box, other in zip(found, boxes(UNIFORM), strict=True))


@pytest.mark.parametrize("side", [1, 2, 3, 7, 8, 32, 225])
@pytest.mark.parametrize("version", [None, 1, 2])
def test_every_box_is_square_within_a_pixel_and_inside(side: int, version: int | None) -> None:
    mixing = MixingConfig(cutmix_lambda_low=0.0, cutmix_lambda_high=1.0, cutmix_version=version)
    found = [box for box in boxes(mixing, side, 2000) if box is not None]

    assert found
    for box in found:
        heights, widths = (end - start for start, end in (box.rows, box.columns))
        assert 0 <= box.rows[0] < box.rows[1] <= side
        assert 0 <= box.columns[0] < box.columns[1] <= side
        assert abs(heights - widths) <= 1
        assert box.lam == pytest.approx(1 - heights * widths / side**2)


def box_starts(mixing: MixingConfig) -> npt.NDArray[np.float64]:
    return np.array([(box.rows[0], box.columns[0]) for box in boxes(mixing) if box]) / SIDE


def test_box_positions_are_uniform() -> None:
    side_length = math.sqrt(0.5)
    free = 1 - side_length
    for side in box_starts(HALF).T:
        deviation = max_deviation(side / free, lambda point: point)

        assert deviation < MAX_DEVIATION + 1 / (free * SIDE)


def test_tensorflow_versions_sample_the_center_and_move_the_box_inside() -> None:
    side_length = math.sqrt(0.5)
    free = 1 - side_length

    def cdf(point: float) -> float:
        """Of the first row, which is 0 if the box would extend beyond the border."""
        return 1.0 if point >= free else point + side_length / 2

    for found in box_starts(replace(HALF, cutmix_version=2)).T:
        # Rounding to pixels blurs the step of the distribution at its end.
        points = [point for point in np.linspace(0, 1, 501) if abs(point - free) > 1 / SIDE]
        deviation = max(abs((found <= point).mean() - cdf(point)) for point in points)

        assert deviation < MAX_DEVIATION + 1 / SIDE


@pytest.mark.parametrize("version", [1, 2])
def test_tensorflow_versions_place_boxes_at_the_border_with_the_expected_frequency(
    version: int,
) -> None:
    found = [box for box in boxes(replace(HALF, cutmix_version=version)) if box is not None]
    at_the_border = sum(box.rows[0] == 0 for box in found)
    expected = sum((box.rows[1] - box.rows[0]) / SIDE / 2 for box in found)
    noise = math.sqrt(len(found)) / 2  # upper bound of the standard deviation of the count

    assert abs(at_the_border - expected) < DEVIATIONS * noise + len(found) / SIDE


def test_rows_columns_and_lambdas_are_independent() -> None:
    found = [box for box in boxes(UNIFORM) if box is not None]
    table = np.array(
        [
            (
                box.rows[0] / (SIDE + 1 - (box.rows[1] - box.rows[0])),
                box.columns[0] / (SIDE + 1 - (box.columns[1] - box.columns[0])),
                box.lam,
            )
            for box in found
        ]
    )
    noise = 1 / math.sqrt(len(found))  # standard deviation of the correlation
    correlations = np.corrcoef(table.T) - np.eye(3)

    assert np.abs(correlations).max() < DEVIATIONS * noise


def test_neighboring_micro_batches_are_independent() -> None:
    found = sample_lambdas(UNIFORM)
    noise = 1 / math.sqrt(DRAWS)

    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < DEVIATIONS * noise
