"""The learning rate of every update, as a pure function of the update's number.

update i (from 0), epochs so far e = i / updates per epoch, changes of the rate k = floor(e · f),
f = changes per epoch (every update when --lr-scheduler-freq is 0), K = epochs of the run · f

step         lr · decay ^ (drops with epoch · f ≤ k)     exponential  lr · decay ^ k
cosine       lr · ½ (1 + cos(π k / K))
polynomial   (lr − end) · (1 − (k − w) / (K − w)) ^ power + end,  w = warm-up epochs · f; before: lr
warm-up      the value · e / warm-up epochs, at every update, while e < warm-up epochs
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from convoy.config.sections.training import LearningRateConfig


@dataclass(frozen=True)
class LearningRatePlan:
    """The rate of each update of a run."""

    config: LearningRateConfig
    updates_per_epoch: int
    updates: int

    def rate(self, update: int) -> float:
        """The rate used by update `update`, counted from 0."""
        value = _SHAPES[self.config.lr_schedule](self, self._changes(update))
        warm = self._warm_epochs * self.updates_per_epoch
        return value * float(update / warm) if update < warm else value

    @property
    def highest(self) -> float:
        """The largest rate of the run. No schedule rises, so it comes with the end of warm-up."""
        warm = math.ceil(self._warm_epochs * self.updates_per_epoch)
        return max(self.rate(update) for update in range(min(warm + 1, self.updates)))

    @cached_property
    def _warm_epochs(self) -> Fraction:
        return _as_typed(self.config.warmup_epoch)

    @cached_property
    def _frequency(self) -> Fraction:
        """Changes per epoch."""
        return _as_typed(self.config.lr_scheduler_freq) or Fraction(self.updates_per_epoch)

    @cached_property
    def _all_changes(self) -> Fraction:
        return self.updates * self._frequency / self.updates_per_epoch

    def _changes(self, update: int) -> int:
        """How often the schedule has moved before this update."""
        return math.floor(update * self._frequency / self.updates_per_epoch)


def _as_typed(number: float) -> Fraction:
    """The decimal as typed: in binary, 0.07 epochs of 100 updates would end after update 7."""
    return Fraction(str(number))


def _step(plan: LearningRatePlan, changes: int) -> float:
    epochs = plan.config.lr_epoch_decay
    drops = sum(_as_typed(epoch) * plan._frequency <= changes for epoch in epochs)
    return plan.config.lr * plan.config.lr_decay**drops


def _cosine(plan: LearningRatePlan, changes: int) -> float:
    return plan.config.lr * 0.5 * (1 + math.cos(math.pi * float(changes / plan._all_changes)))


def _exponential(plan: LearningRatePlan, changes: int) -> float:
    return float(plan.config.lr * plan.config.lr_decay**changes)


def _polynomial(plan: LearningRatePlan, changes: int) -> float:
    config = plan.config
    end = config.poly_lr_end_ratio * config.lr
    warm = plan._warm_epochs * plan._frequency
    if changes <= warm:
        return config.lr
    left = float(1 - (changes - warm) / (plan._all_changes - warm))
    return float((config.lr - end) * left**config.poly_lr_decay_power + end)


_SHAPES: dict[str, Callable[[LearningRatePlan, int], float]] = {
    "step": _step,
    "cosine": _cosine,
    "exponential": _exponential,
    "polynomial": _polynomial,
}
