"""How often cutmix cuts, how much and where: the stated distributions, within sampling error."""

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
SIDE = 1000  # so large that whole pixels hardly show
# One figure in 10^9 lies farther out by chance. What passes once passes always: draws are fixed.
DEVIATIONS = 6
FAR = math.sqrt(math.log(2e9) / (2 * DRAWS))  # of a distribution, by Dvoretzky, Kiefer, Wolfowitz
EVEN = MixingConfig(cutmix_lambda_low=0.2, cutmix_lambda_high=0.8)
HALF = MixingConfig(cutmix_lambda_low=0.5, cutmix_lambda_high=0.5)

Chance = Callable[[float], float]


@cache
def boxes(mixing: MixingConfig, side: int = SIDE, draws: int = DRAWS) -> list[CutmixBox | None]:
    mixing = Mixing(mixing, seed=11, image_size=side)
    samples = [mixing.sample(number % 7, number, 4) for number in range(draws)]
    return [mix.box if mix else None for mix in samples]


def kept(mixing: MixingConfig) -> npt.NDArray[np.float64]:
    return np.array([1.0 if box is None else box.lam for box in boxes(mixing)])


def farthest(found: npt.NDArray[np.float64], chance_below: Chance) -> float:
    """The largest distance between the share of draws up to a point and the chance of it."""
    points = np.linspace(0, 1, 501)
    return max(abs((found <= point).mean() - chance_below(point)) for point in points)


def test_cutmix_lambda_is_uniform_between_the_bounds() -> None:
    found = kept(EVEN)
    # A corner moves by half a pixel at most: the share by (2 · 1000 + 1) / 1000².
    margin = (2 * SIDE + 1) / SIDE**2

    assert found.min() >= 0.2 - margin and found.max() <= 0.8 + margin
    off = farthest(found, lambda point: min(max((point - 0.2) / 0.6, 0), 1))
    assert off < FAR + margin / 0.6


@pytest.mark.parametrize("version", [None, 2])
def test_equal_bounds_give_a_constant_lambda(version: int | None) -> None:
    found = kept(replace(HALF, cutmix_version=version))

    assert np.abs(found - 0.5).max() <= (2 * SIDE + 1) / SIDE**2


def test_version_two_always_takes_the_lower_bound() -> None:
    mixing = replace(EVEN, cutmix_version=2)

    assert {sample_cutmix_lambda(mixing, first, 0.3) for first in (0.0, 0.5, 0.99)} == {0.2}


@pytest.mark.parametrize("bound", [0.5, 0.7, 0.85, 0.95])
def test_version_one_skips_some_and_samples_the_rest_logarithmically(bound: float) -> None:
    mixing = MixingConfig(cutmix_lambda_low=bound, cutmix_lambda_high=bound, cutmix_version=1)
    spared = max(0.0, 1.55 * bound - 0.96)
    grid = (np.arange(200) + 0.5) / 200
    found = np.array(
        [[sample_cutmix_lambda(mixing, first, second) for first in grid] for second in grid]
    )

    assert (found == 1).mean() == pytest.approx(spared, abs=1 / 200)
    # v even in [e⁻⁴, 1): the share 1 + ln(v)/4 is below x with the chance of v below e^(4x − 4).
    least = math.exp(-4)
    for point in np.linspace(0, 0.999, 50):
        below = (math.exp(4 * point - 4) - least) / (1 - least)
        samples = (found[found < 1] <= point).mean()

        assert samples == pytest.approx(below, abs=1 / 100)


def test_version_one_samples_follow_its_distribution() -> None:
    found = kept(replace(HALF, cutmix_version=1))
    margin, least = (2 * SIDE + 1) / SIDE**2, math.exp(-4)

    def chance_below(point: float) -> float:
        return (math.exp(4 * point - 4) - least) / (1 - least)

    # The density is at most 4 / (1 − e⁻⁴), next to 1; there whole pixels count too.
    assert farthest(found, chance_below) < FAR + margin * 4 / (1 - least)


@pytest.mark.parametrize("version", [None, 1, 2])
def test_extreme_random_numbers_stay_within_the_image(version: int | None) -> None:
    for low in (0.0, 0.3, 1.0):
        mixing = MixingConfig(cutmix_lambda_low=low, cutmix_lambda_high=1.0, cutmix_version=version)
        for first in (0.0, 1 - 2.0**-53):
            for second in (0.0, 1 - 2.0**-53):
                assert 0 <= sample_cutmix_lambda(mixing, first, second) <= 1


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.35, 0.9, 1.0])
@pytest.mark.parametrize("version", [None, 2])
def test_cutmix_is_skipped_with_the_given_probability(chance: float, version: int | None) -> None:
    mixing = replace(HALF, cutmix_disable_prob=chance, cutmix_version=version)
    spared = sum(box is None for box in boxes(mixing))
    noise = math.sqrt(DRAWS * chance * (1 - chance))  # deviation of a count

    assert abs(spared - DRAWS * chance) <= DEVIATIONS * noise


def test_skipping_does_not_change_the_other_boxes() -> None:
    found = boxes(replace(EVEN, cutmix_disable_prob=0.5))
    cut = np.array([box.lam for box in found if box is not None])
    off = farthest(cut, lambda point: min(max((point - 0.2) / 0.6, 0), 1))
    margin = (2 * SIDE + 1) / SIDE**2

    assert off < math.sqrt(math.log(2e9) / (2 * len(cut))) + margin / 0.6
    assert all(box in (None, other) for box, other in zip(found, boxes(EVEN), strict=True))


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


def starts(mixing: MixingConfig) -> npt.NDArray[np.float64]:
    return np.array([(box.rows[0], box.columns[0]) for box in boxes(mixing) if box]) / SIDE


def test_box_positions_are_uniform() -> None:
    extent = math.sqrt(0.5)
    room = 1 - extent
    for side in starts(HALF).T:
        off = farthest(side / room, lambda point: point)

        assert off < FAR + 1 / (room * SIDE)


def test_tensorflow_versions_sample_the_center_and_move_the_box_inside() -> None:
    extent = math.sqrt(0.5)
    room = 1 - extent

    def chance_below(point: float) -> float:
        """Of the first row: it is 0 as long as half of the box would lie outside."""
        return 1.0 if point >= room else point + extent / 2

    for found in starts(replace(HALF, cutmix_version=2)).T:
        # A whole pixel is off by half of one, also at the end of the room.
        points = [point for point in np.linspace(0, 1, 501) if abs(point - room) > 1 / SIDE]
        off = max(abs((found <= point).mean() - chance_below(point)) for point in points)

        assert off < FAR + 1 / SIDE


@pytest.mark.parametrize("version", [1, 2])
def test_tensorflow_versions_place_boxes_at_the_border_with_the_expected_frequency(
    version: int,
) -> None:
    found = [box for box in boxes(replace(HALF, cutmix_version=version)) if box is not None]
    at_the_border = sum(box.rows[0] == 0 for box in found)
    expected = sum((box.rows[1] - box.rows[0]) / SIDE / 2 for box in found)
    noise = math.sqrt(len(found)) / 2  # of a count, at most

    assert abs(at_the_border - expected) < DEVIATIONS * noise + len(found) / SIDE


def test_rows_columns_and_lambdas_are_independent() -> None:
    found = [box for box in boxes(EVEN) if box is not None]
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
    noise = 1 / math.sqrt(len(found))  # deviation of the correlation of independent numbers
    correlations = np.corrcoef(table.T) - np.eye(3)

    assert np.abs(correlations).max() < DEVIATIONS * noise


def test_neighboring_micro_batches_are_independent() -> None:
    found = kept(EVEN)
    noise = 1 / math.sqrt(DRAWS)

    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < DEVIATIONS * noise
