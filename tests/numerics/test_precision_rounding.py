"""Stochastic rounding is unbiased, gives representable values, and depends only on its key."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from convoy.numerics.precision import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    ElementRange,
    FloatFormat,
    StochasticRounder,
    random_bits,
    round_stochastic,
)
from convoy.rng import bits, key

CPU = torch.device("cpu")
COUNT = 1 << 18
EXTENTS = {"conv.weight": range(1000), "fc.bias": range(1008, 1040)}

# Normal numbers of both signs, numbers just above a representable one, subnormal numbers of
# float16, numbers below half of its smallest step, and subnormal numbers of float32.
VALUES = (1.0003, -1.0003, 0.1, 1000.7, -3.01e-5, 6.0e-5, 1e-8, -2e-9, 3e-11, 1e-39, -1e-40)


def rounded(value: float, target: FloatFormat, count: int = COUNT) -> Tensor:
    values = torch.full((count,), value, dtype=torch.float32)
    return round_stochastic(values, random_bits(key("test", str(value)), range(count), CPU), target)


def neighbors(value: float, target: FloatFormat) -> tuple[float, float]:
    """The nearest representable values on both sides, computed independently."""
    exponent = max(math.frexp(value)[1] - 1, target.min_exponent)
    distance = 2.0 ** (exponent - target.fraction_bits)
    below = math.floor(value / distance) * distance
    return below, below + distance


@pytest.mark.parametrize("target", [FLOAT16, BFLOAT16], ids=lambda target: target.name)
@pytest.mark.parametrize("value", VALUES)
def test_the_mean_of_stochastic_rounding_is_exact(value: float, target: FloatFormat):
    exact = float(np.float32(value))
    below, above = neighbors(exact, target)
    fraction = (exact - below) / (above - below)
    noise = (above - below) * math.sqrt(fraction * (1 - fraction) / COUNT)
    resolution = (above - below) * 2.0**-31  # of 32 random bits
    found = rounded(exact, target)

    assert set(found.tolist()) <= {below, above}
    assert abs(float(found.double().mean()) - exact) <= 5 * noise + resolution


@pytest.mark.parametrize("target", [FLOAT16, BFLOAT16], ids=lambda target: target.name)
def test_a_representable_value_does_not_change(target: FloatFormat):
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(target.dtype).float()
    values = numbers[torch.isfinite(numbers)]

    assert torch.equal(
        round_stochastic(values, random_bits(3, range(len(values)), CPU), target), values
    )


@pytest.mark.parametrize("target", [FLOAT16, BFLOAT16], ids=lambda target: target.name)
def test_every_result_is_representable(target: FloatFormat):
    values = torch.randn(COUNT, generator=torch.Generator().manual_seed(1)).mul_(0.01).pow_(3)
    found = round_stochastic(values, random_bits(5, range(COUNT), CPU), target)

    assert torch.equal(target.round_nearest(found), found)


def test_values_beyond_the_largest_become_infinite():
    largest = FLOAT16.max_value
    overflowed = rounded(-70000.0, FLOAT16, 100)
    between = rounded(largest + 8, FLOAT16)
    fraction = float((between == torch.inf).double().mean())

    assert overflowed.tolist() == [-math.inf] * 100
    assert set(between.tolist()) == {largest, math.inf}
    assert abs(fraction - 8 / 32) <= 5 * math.sqrt(0.25 * 0.75 / COUNT)


@pytest.mark.parametrize("target", [FLOAT16, BFLOAT16], ids=lambda target: target.name)
def test_non_finite_values_do_not_change(target: FloatFormat):
    values = torch.tensor([math.inf, -math.inf, math.nan, 1.0] * 50)
    found = round_stochastic(values, random_bits(1, range(200), CPU), target)

    assert torch.equal(found.nan_to_num(nan=7.0), values.nan_to_num(nan=7.0))


def test_random_bits_match_the_counter_based_rng():
    random_words = bits(key(9, "a"), np.arange(500)).view(np.int32)

    for elements in (range(1000), range(1, 8), range(7, 7), range(400, 999)):
        assert (
            random_bits(key(9, "a"), elements, CPU).tolist()
            == [*random_words[elements.start :]][: len(elements)]
        )


def test_any_range_of_the_vector_has_the_same_bits():
    rounder = StochasticRounder(7, EXTENTS)
    values = torch.randn(1040, generator=torch.Generator().manual_seed(2))
    full = rounder.round(values, FLOAT16, "weight", ElementRange(range(1040), 5))

    for cut in (16, 17, 999, 1000, 1008, 1020):
        parts = [range(cut), range(cut, 1040)]
        rounded_parts = [
            rounder.round(values[part.start : part.stop], FLOAT16, "weight", ElementRange(part, 5))
            for part in parts
        ]

        assert torch.equal(torch.cat(rounded_parts), full)


def test_random_bits_depend_on_seed_update_weight_and_slot():
    values = torch.full((1040,), 1.0003)

    def rounded_with(
        seed: int = 7, slot: str = "weight", update: int = 5, extents: dict[str, range] = EXTENTS
    ) -> Tensor:
        elements = ElementRange(range(1040), update)
        return StochasticRounder(seed, extents).round(values, FLOAT16, slot, elements)

    default = rounded_with()
    others = [rounded_with(seed=8), rounded_with(slot="velocity"), rounded_with(update=6)]
    renamed = rounded_with(extents={"other.weight": range(1000), "fc.bias": range(1008, 1040)})

    assert torch.equal(rounded_with(), default)
    assert not any(torch.equal(item[:1000], default[:1000]) for item in (*others, renamed))
    assert torch.equal(renamed[1000:], default[1000:])


def test_fp32_state_is_not_rounded():
    values = torch.randn(1040)

    found = StochasticRounder(7, EXTENTS).round(
        values, FLOAT32, "weight", ElementRange(range(1040), 0)
    )

    assert found is values
