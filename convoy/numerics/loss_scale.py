"""The loss scale while a run trains: as planned, or as the 16-bit gradients want it.

A scale that follows them looks at every update's weight gradients, as they are before rounding:

    not finite                  the update is skipped, the scale halved
    over, near the largest      halved        above 0.125 × the largest value of the type
    near, within a factor of 2  kept          above half of that: doubled, it would be over
    under, about to vanish      doubled       below the smallest normal value

A scale that made a gradient infinite is not tried again for a thousand updates.

"Some" is more than one in ten million. Counts are whole numbers, so every layout sums to the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from convoy.numerics.precision import NumberType
from convoy.plan.loop import LossScalePlan

EDGE = 0.125  # of the largest value: products and sums of gradients need room above them
SHARE = 1e-7
HIGHEST, LOWEST = 2.0**24, 2.0**-24
PATIENCE = 1000  # updates until a scale that made gradients infinite is tried again


@dataclass(frozen=True)
class Counts:
    """Gradients of 16 bits in one update, over all its micro-batches and processes."""

    over: int = 0
    near: int = 0  # those that are over, too
    under: int = 0
    total: int = 0


@dataclass(frozen=True)
class Choice:
    """The scale of the next update, and why; whether this update may change the weights."""

    scale: float
    why: str = ""  # empty where the scale stays
    skips: bool = False


def choose(scale: float, counts: Counts, finite: bool, ceiling: float = HIGHEST) -> Choice:
    """What follows from the gradients of one update.

    At the lowest scale, gradients that are not finite are not the scale's doing.
    """
    if not finite:
        if scale <= LOWEST:
            return Choice(scale)
        return Choice(scale / 2, "gradients are not finite, the update is skipped", skips=True)
    if _some(counts.over, counts) and scale > LOWEST:
        return Choice(scale / 2, f"{_of(counts.over, counts)} are near overflow")
    if _some(counts.near, counts) or scale * 2 > ceiling:
        return Choice(scale)
    if _some(counts.under, counts):
        return Choice(scale * 2, f"{_of(counts.under, counts)} are about to vanish")
    return Choice(scale)


def _some(count: int, counts: Counts) -> bool:
    return count > SHARE * counts.total


def _of(count: int, counts: Counts) -> str:
    return f"{count:,} of {counts.total:,} gradients"


class LossScale:
    """The scale of the update at hand, and of the last one that changed the weights."""

    def __init__(self, plan: LossScalePlan) -> None:
        self.plan = plan
        self.followed = plan.last if plan.automatic else None  # the scale, if it follows
        self.before: float | None = None
        self.ceiling = HIGHEST  # sums may overflow where no single gradient is near it
        self.calm = 0  # updates since the last one that was not finite

    def at(self, update: int) -> float:
        """The scale of this update, counted from 0."""
        return self.plan.scale(update) if self.followed is None else self.followed

    def choose(self, counts: Counts, finite: bool) -> Choice:
        """Take over what follows for the next update; what is planned stays planned."""
        if self.followed is None:
            return Choice(1.0)
        choice = choose(self.followed, counts, finite, self.ceiling)
        self.calm = self.calm + 1 if finite else 0
        if not finite:
            self.ceiling = choice.scale
        elif self.calm >= PATIENCE:
            self.ceiling = HIGHEST
        self.followed = choice.scale
        return choice


class GradientRangeCounter:
    """Counts the gradients of one type as micro-batches leave them, without waiting for a device.

    With `saturates` those beyond the type's largest value become that value.
    """

    def __init__(self, of: NumberType, counts: bool, saturates: bool) -> None:
        self.of = of
        self.counts = counts
        self.saturates = saturates
        self._found: list[Tensor] = []
        self._total = 0

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        """The gradients of some weights in one micro-batch, before they are rounded."""
        if self.counts:
            self._total += sum(one.numel() for one in gradients)
            self._found += [self._count(one) for one in gradients]
        if self.saturates:
            torch._foreach_clamp_min_(list(gradients), -self.of.largest)
            torch._foreach_clamp_max_(list(gradients), self.of.largest)

    def _count(self, gradient: Tensor) -> Tensor:
        size, edge = gradient.abs(), EDGE * self.of.largest
        masks = (size >= edge, size >= edge / 2, size < self.of.smallest_normal)
        return torch.stack([torch.count_nonzero(mask) for mask in masks])

    def take(self) -> list[int]:
        """Over, near, under and total of the update, which begin anew."""
        found = torch.stack(self._found).sum(0).tolist() if self._found else [0, 0, 0]
        total, self._total = self._total, 0
        self._found.clear()
        return [*found, total]
