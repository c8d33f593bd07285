"""The loss scale during training: planned, or dynamic, that is adapted to the 16-bit gradients.

A dynamic scale depends on the weight gradients of every update, before they are rounded:

    not finite                  the update is skipped, the scale halved
    over, near overflow         halved        above 0.125 × the largest value of the format
    near, within a factor of 2  unchanged     above half of that: over if doubled
    under, near underflow       doubled       below the smallest normal value

A scale with infinite gradients is not retried for a thousand updates. At most one gradient in ten
million is tolerated in each class. Counts are integers, so their sum does not depend on the layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from convoy.numerics.precision import FloatFormat
from convoy.planning.loop import LossScalePlan

OVERFLOW_MARGIN = 0.125  # fraction of the largest value: products and sums need headroom
TOLERATED_FRACTION = 1e-7
MAX_SCALE, MIN_SCALE = 2.0**24, 2.0**-24
CEILING_INTERVAL = 1000  # updates until a scale with infinite gradients is retried


@dataclass(frozen=True)
class RangeCounts:
    """Counts of 16-bit gradients in one update, over all its micro-batches and processes."""

    over: int = 0
    near: int = 0  # including those that are over
    under: int = 0
    total: int = 0


@dataclass(frozen=True)
class ScaleDecision:
    """The scale of the next update, the reason for a change, and whether to skip this update."""

    scale: float
    reason: str = ""  # empty if the scale does not change
    skip_update: bool = False


def next_scale(
    scale: float, counts: RangeCounts, finite: bool, max_scale: float = MAX_SCALE
) -> ScaleDecision:
    """Compute the next scale from the gradients of one update.

    At the minimum scale, non-finite gradients are not caused by the scale.
    """
    if not finite:
        if scale <= MIN_SCALE:
            return ScaleDecision(scale)
        return ScaleDecision(
            scale / 2, "gradients are not finite, so the update is skipped", skip_update=True
        )
    tolerated = TOLERATED_FRACTION * counts.total
    if counts.over > tolerated and scale > MIN_SCALE:
        reason = f"{counts.over:,} of {counts.total:,} gradients are near overflow"
        return ScaleDecision(scale / 2, reason)
    if counts.near <= tolerated < counts.under and scale * 2 <= max_scale:
        reason = f"{counts.under:,} of {counts.total:,} gradients are near underflow"
        return ScaleDecision(scale * 2, reason)
    return ScaleDecision(scale)


class LossScale:
    """The scale of the current update, and of the last one that was applied."""

    def __init__(self, plan: LossScalePlan) -> None:
        self.plan = plan
        self.dynamic_scale = plan.final if plan.automatic else None  # None if planned
        self.last_applied_scale: float | None = None
        self.max_scale = MAX_SCALE  # sums may overflow although no gradient is near the limit
        self.finite_updates = 0  # since the last non-finite one

    def scale_at(self, update: int) -> float:
        """The scale of this update, counted from 0."""
        return self.plan.scale(update) if self.dynamic_scale is None else self.dynamic_scale

    def update(self, counts: RangeCounts, finite: bool) -> ScaleDecision:
        """Adapt a dynamic scale to the gradients of this update; a planned scale stays."""
        if self.dynamic_scale is None:
            return ScaleDecision(1.0)
        decision = next_scale(self.dynamic_scale, counts, finite, self.max_scale)
        self.finite_updates = self.finite_updates + 1 if finite else 0
        if not finite:
            self.max_scale = decision.scale
        elif self.finite_updates >= CEILING_INTERVAL:
            self.max_scale = MAX_SCALE
        self.dynamic_scale = decision.scale
        return decision


class GradientRangeCounter:
    """Counts the gradients of each micro-batch by magnitude, without waiting for the device.

    With `saturates`, gradients beyond the largest value of the format are clamped to it.
    """

    def __init__(self, number_format: FloatFormat, count_ranges: bool, saturates: bool) -> None:
        self.number_format = number_format
        self.count_ranges = count_ranges
        self.saturates = saturates
        self._range_counts: list[Tensor] = []
        self._num_gradients = 0

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        """Process the gradients of some weights in one micro-batch, before they are rounded."""
        if self.count_ranges:
            self._num_gradients += sum(gradient.numel() for gradient in gradients)
            self._range_counts += [self._count(gradient) for gradient in gradients]
        if self.saturates:
            torch._foreach_clamp_min_(list(gradients), -self.number_format.max_value)
            torch._foreach_clamp_max_(list(gradients), self.number_format.max_value)

    def _count(self, gradient: Tensor) -> Tensor:
        magnitude, limit = gradient.abs(), OVERFLOW_MARGIN * self.number_format.max_value
        masks = (
            magnitude >= limit,
            magnitude >= limit / 2,
            magnitude < self.number_format.smallest_normal,
        )
        return torch.stack([torch.count_nonzero(mask) for mask in masks])

    def pop_counts(self) -> list[int]:
        """Return over, near, under and total of the update, and reset them."""
        counts = (
            torch.stack(self._range_counts).sum(0).tolist() if self._range_counts else [0, 0, 0]
        )
        total, self._num_gradients = self._num_gradients, 0
        self._range_counts.clear()
        return [*counts, total]
