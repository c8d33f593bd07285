"""The dynamic loss scale: counts of gradients, and the scale that follows from them."""

from itertools import product

import numpy as np
import pytest
import torch

from convoy.numerics.loss_scale import (
    GradientRangeCounter,
    LossScale,
    RangeCounts,
    ScaleDecision,
    next_scale,
)
from convoy.numerics.precision import BFLOAT16, FLOAT16, FloatFormat
from convoy.planning.loop import LossScalePlan

TOTAL = 10**8  # one in ten million of them is 10
COUNTS = [0, 1, 10, 11, TOTAL]
SCALES = [2.0**-25, 2.0**-24, 2.0**-23, 0.5, 1.0, 2.0, 100.0, 2.0**23, 2.0**24, 2.0**30]


def expected(scale: float, over: int, near: int, under: int, finite: bool) -> tuple[float, bool]:
    """The next scale, and whether the update is skipped."""
    limit = 1e-7
    if not finite:
        return (scale / 2, True) if scale > 2.0**-24 else (scale, False)
    if over / TOTAL > limit:
        return (scale / 2 if scale > 2.0**-24 else scale), False
    if near / TOTAL > limit:
        return scale, False
    if under / TOTAL > limit and scale * 2 <= 2.0**24:
        return scale * 2, False
    return scale, False


@pytest.mark.parametrize("scale", SCALES)
def test_every_combination_of_counts_has_the_documented_scale(scale: float) -> None:
    for over, near, under, finite in product(COUNTS, COUNTS, COUNTS, [True, False]):
        decision = next_scale(scale, RangeCounts(over, max(over, near), under, TOTAL), finite)
        case = (over, near, under, finite)

        assert (decision.scale, decision.skip_update) == expected(
            scale, over, max(over, near), under, finite
        ), case
        assert bool(decision.reason) == (decision.scale != scale), case


@pytest.mark.parametrize(
    ("counts", "finite", "reason"),
    [
        (RangeCounts(3, 3, 9, 172506), True, "3 of 172,506 gradients are near overflow"),
        (RangeCounts(0, 0, 1200, 172506), True, "1,200 of 172,506 gradients are near underflow"),
        (RangeCounts(3, 3, 9, 172506), False, "gradients are not finite, so the update is skipped"),
    ],
)
def test_a_change_has_a_reason(counts: RangeCounts, finite: bool, reason: str) -> None:
    assert next_scale(64.0, counts, finite).reason == reason


def test_a_stage_without_weights_changes_nothing() -> None:
    assert next_scale(64.0, RangeCounts(), finite=True) == ScaleDecision(64.0)


@pytest.mark.parametrize("float_format", [FLOAT16, BFLOAT16])
def test_counts_match_plain_python_numbers(float_format: FloatFormat) -> None:
    rng = np.random.default_rng(0)
    exponents = rng.uniform(
        np.log2(float_format.smallest_normal) - 3, np.log2(float_format.max_value), 5000
    )
    values = (rng.choice([-1.0, 1.0], 5000) * 2.0**exponents).astype(np.float32)
    values[:3] = 0.0, 0.125 * float_format.max_value, 0.0625 * float_format.max_value
    values[3:5] = float_format.smallest_normal, -float_format.smallest_normal
    counter = GradientRangeCounter(float_format, count_ranges=True, saturates=False)
    counter([torch.from_numpy(values[:2000]).view(40, 50), torch.from_numpy(values[2000:2000])])
    counter([torch.from_numpy(values[2000:])])
    magnitudes = np.abs(values.astype(np.float64))
    threshold = 0.125 * float(float_format.max_value)

    assert counter.pop_counts() == [
        int((magnitudes >= threshold).sum()),
        int((magnitudes >= threshold / 2).sum()),
        int((magnitudes < float_format.smallest_normal).sum()),
        5000,
    ]
    assert counter.pop_counts() == [0, 0, 0, 0]


def test_an_infinity_counts_as_near_overflow() -> None:
    counter = GradientRangeCounter(FLOAT16, count_ranges=True, saturates=False)
    counter([torch.tensor([torch.inf, -torch.inf, 1.0])])

    assert counter.pop_counts() == [2, 2, 0, 3]


def test_saturated_gradients_are_counted_before_clamping() -> None:
    gradients = [torch.tensor([1e6, -torch.inf, 65504.0, 3.0]), torch.tensor([[torch.nan]])]
    counter = GradientRangeCounter(FLOAT16, count_ranges=True, saturates=True)
    counter(gradients)

    assert gradients[0].tolist() == [65504.0, -65504.0, 65504.0, 3.0]
    assert bool(gradients[1].isnan())
    assert counter.pop_counts() == [3, 3, 0, 5]


def test_a_planned_scale_does_not_depend_on_gradients() -> None:
    scale = LossScale(LossScalePlan(2, 8, updates_per_epoch=1, updates=6))
    decision = scale.update(RangeCounts(TOTAL, TOTAL, 0, TOTAL), finite=False)

    assert not decision.skip_update
    assert [scale.scale_at(update) for update in range(6)] == [2, 2, 4, 4, 8, 8]


def test_a_dynamic_scale_starts_at_the_planned_one_and_is_stored() -> None:
    scale = LossScale(LossScalePlan(64, 64, automatic=True))
    initial = scale.scale_at(0)
    scale.update(RangeCounts(TOTAL, TOTAL, 0, TOTAL), finite=True)
    scale.update(RangeCounts(TOTAL, TOTAL, 0, TOTAL), finite=True)

    assert (initial, scale.scale_at(5)) == (64, 16)


def test_a_scale_that_overflowed_is_not_retried_for_a_thousand_updates() -> None:
    scale = LossScale(LossScalePlan(initial=8.0, final=8.0, automatic=True))
    low = RangeCounts(under=5, total=10)  # half of the gradients are near underflow
    scale.update(low, finite=False)
    scales = [scale.update(low, finite=True).scale for _ in range(1001)]

    assert scales == [4.0] * 1000 + [8.0]
