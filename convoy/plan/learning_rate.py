"""The learning rate of every update, as a pure function of the update's number.

update i (from 0), epochs so far e = i / updates per epoch, changes of the rate k = floor(e · f),
f = changes per epoch (every update when --lr-scheduler-freq is 0), K = k at the end of the run

step         lr · decay ^ (drops passed)          exponential  lr · decay ^ k
cosine       lr · ½ (1 + cos(π k / K))
polynomial   (lr − end) · (1 − (k − w) / (K − w)) ^ power + end,  w = k at the end of warm-up
warm-up      the value · e / warm-up epochs, at every update, while e < warm-up epochs
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from convoy.config.sections.training import LearningRateConfig


@dataclass(frozen=True)
class LearningRatePlan:
    """The rate of each update of a run."""

    config: LearningRateConfig
    updates_per_epoch: int
    updates: int

    def rate(self, update: int) -> float:
        """The rate used by update `update`, counted from 0."""
        warm = self.config.warmup_epoch * self.updates_per_epoch
        value = _SHAPES[self.config.lr_schedule](self, self._changes(update))
        return value * update / warm if update < warm else value

    def _changes(self, update: float) -> float:
        """How often the schedule has moved before this update."""
        frequency = self.config.lr_scheduler_freq
        if frequency == 0:
            return update
        return math.floor(update * frequency / self.updates_per_epoch)

    @property
    def _all_changes(self) -> float:
        frequency = self.config.lr_scheduler_freq or self.updates_per_epoch
        return self.updates * frequency / self.updates_per_epoch

    def changes(self) -> list[tuple[int, float]]:
        """Every update at which the rate changes, and the new rate."""
        rates = [self.rate(update) for update in range(self.updates)]
        return [
            (update, rate)
            for update, rate in enumerate(rates)
            if update == 0 or rate != rates[update - 1]
        ]


def _step(plan: LearningRatePlan, changes: float) -> float:
    frequency = plan.config.lr_scheduler_freq or plan.updates_per_epoch
    drops = sum(epoch * frequency <= changes for epoch in plan.config.lr_epoch_decay)
    return plan.config.lr * plan.config.lr_decay**drops


def _cosine(plan: LearningRatePlan, changes: float) -> float:
    return plan.config.lr * 0.5 * (1 + math.cos(math.pi * changes / plan._all_changes))


def _exponential(plan: LearningRatePlan, changes: float) -> float:
    return float(plan.config.lr * plan.config.lr_decay**changes)


def _polynomial(plan: LearningRatePlan, changes: float) -> float:
    config = plan.config
    end = config.poly_lr_end_ratio * config.lr
    warm = config.warmup_epoch * (config.lr_scheduler_freq or plan.updates_per_epoch)
    if changes <= warm:
        return config.lr
    left = max(0.0, 1 - (changes - warm) / (plan._all_changes - warm))
    return float((config.lr - end) * left**config.poly_lr_decay_power + end)


_SHAPES: dict[str, Callable[[LearningRatePlan, float], float]] = {
    "step": _step,
    "cosine": _cosine,
    "exponential": _exponential,
    "polynomial": _polynomial,
}
