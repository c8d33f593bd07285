"""LearningRatePlan: the learning rate as a pure function of the update number.

update i (from 0), epochs so far e = i / updates per epoch, schedule steps so far k = floor(e · f),
f = steps per epoch (every update if --lr-scheduler-freq is 0), K = epochs of the run · f

lr is --lr, or 2 ^ exponent · samples per update; with --lr-drops f = drops / epochs of the run

step         lr · decay ^ drops, or lr · multiplier of that drop;
             a drop takes effect when its epoch · f (or its share · K) ≤ k
exponential  lr · decay ^ k
cosine       lr · ½ (1 + cos(π k / K))
polynomial   (lr − end) · (1 − (k − w) / (K − w)) ^ power + end,  w = warm-up epochs · f; before: lr
warm-up      the value · e / warm-up epochs, at every update, while e < warm-up epochs
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from convoy.config.sections.training import LearningRateConfig


@dataclass(frozen=True)
class LrChanges:
    """The updates at which the rate changes, computed on demand: a run can have millions."""

    count: int
    update_of: Callable[[int], int]  # index of the change → update
    every_update: bool = False


@dataclass(frozen=True)
class LearningRatePlan:
    """The learning rate of each update of a run."""

    config: LearningRateConfig
    updates_per_epoch: int
    updates: int
    samples_per_update: int = 1

    def rate(self, update: int, warmup_update: int | None = None) -> float:
        """Return the learning rate of an update, counted from 0.

        `warmup_update` is the update that determines the warm-up factor, if it is not the same.
        """
        config, initial = self.config, self.initial_lr
        changes = math.floor(update * self._changes_per_update)
        match config.lr_schedule:
            case "step":
                drops = sum(point <= changes for point in self._milestone_changes)
                multipliers = config.lr_multipliers
                rate = initial * (multipliers[drops] if multipliers else config.lr_decay**drops)
            case "cosine":
                angle = math.pi * float(changes / self._total_changes)
                rate = initial * 0.5 * (1 + math.cos(angle))
            case "exponential":
                # Any decay below 1 is 0 by then, and larger exponents overflow.
                rate = float(initial * config.lr_decay ** min(changes, 10**30))
            case _:
                rate = self._polynomial(changes)
        warmup = self._warmup_updates
        position = update if warmup_update is None else warmup_update
        return rate * float(position / warmup) if position < warmup else rate

    @cached_property
    def initial_lr(self) -> float:
        """The learning rate at the start of the schedule, without warm-up."""
        exponent = self.config.base_learning_rate_exponent
        if exponent is not None:
            return float(2.0**exponent * self.samples_per_update)
        assert self.config.lr is not None, "resolve requires --lr or --base-learning-rate-exponent"
        return self.config.lr

    @property
    def max_lr(self) -> float:
        """The largest learning rate of the run, found by branch and bound.

        A run can have millions of updates, so intervals are halved until none can exceed the best
        rate found. In a rising interval the maximum is at an end; in a falling one, the rate at its
        start with the warm-up factor of its end is an upper bound.
        """
        ends = self._extrema()
        best = max(map(self.rate, ends))
        intervals = list(pairwise(ends))
        while intervals:
            first, last = intervals.pop()
            if last - first < 2 or self.rate(first, warmup_update=last) <= best:
                continue
            middle = (first + last) // 2
            best = max(best, self.rate(middle))
            intervals += [(first, middle), (middle, last)]
        return best

    def _extrema(self) -> list[int]:
        """Updates between which both the schedule and the warm-up factor are monotonic."""
        drops = self._milestones
        extrema = [0, math.ceil(self._warmup_updates), *drops, *(drop - 1 for drop in drops)]
        return sorted(
            {min(max(update, 0), self.updates - 1) for update in [*extrema, self.updates]}
        )

    @property
    def _milestones(self) -> list[int]:
        return [
            math.ceil(math.ceil(point) / self._changes_per_update)
            for point in self._milestone_changes
        ]

    @cached_property
    def warmup_end(self) -> int:
        """The first update after warm-up, or the last update of the run if there is none."""
        return min(math.ceil(self._warmup_updates), self.updates - 1)

    @cached_property
    def lr_changes(self) -> LrChanges:
        """The updates after warm-up at which the schedule changes the rate."""
        if self.config.lr_schedule == "step":
            drops = {drop for drop in self._milestones if self.warmup_end < drop < self.updates}
            return LrChanges(len(drops), sorted(drops).__getitem__)
        if self._changes_per_update >= 1:
            first = self.warmup_end + 1
            return LrChanges(self.updates - first, lambda index: first + index, True)
        first_step, last_step = (
            math.floor(update * self._changes_per_update)
            for update in (self.warmup_end, self.updates - 1)
        )
        return LrChanges(
            last_step - first_step,
            lambda index: math.ceil((first_step + 1 + index) / self._changes_per_update),
        )

    def _polynomial(self, changes: int) -> float:
        config, end = self.config, self.config.abs_end_learning_rate
        if end is None:
            end = config.poly_lr_end_ratio * self.initial_lr
        warm = self._warmup_epochs * self._changes_per_epoch
        if changes <= warm:
            return self.initial_lr
        remaining = float(1 - (changes - warm) / (self._total_changes - warm))
        return float((self.initial_lr - end) * remaining**config.poly_lr_decay_power + end)

    @cached_property
    def _warmup_updates(self) -> Fraction:
        return self._warmup_epochs * self.updates_per_epoch

    @cached_property
    def _warmup_epochs(self) -> Fraction:
        return _exact_fraction(self.config.warmup_epoch)

    @cached_property
    def _changes_per_epoch(self) -> Fraction:
        """Schedule steps per epoch."""
        if self.config.lr_drops is not None:
            return Fraction(self.config.lr_drops * self.updates_per_epoch, self.updates)
        return _exact_fraction(self.config.lr_scheduler_freq) or Fraction(self.updates_per_epoch)

    @cached_property
    def _total_changes(self) -> Fraction:
        return self.updates * self._changes_per_update

    @cached_property
    def _changes_per_update(self) -> Fraction:
        """Schedule steps per update."""
        return self._changes_per_epoch / self.updates_per_epoch

    @cached_property
    def _milestone_changes(self) -> tuple[Fraction, ...]:
        """The schedule steps at which `step` drops."""
        config = self.config
        by_epoch = (
            _exact_fraction(epoch) * self._changes_per_epoch for epoch in config.lr_epoch_decay
        )
        by_share = (_exact_fraction(share) * self._total_changes for share in config.lr_share_decay)
        return (*by_epoch, *by_share)


def _exact_fraction(number: float) -> Fraction:
    """The decimal as typed: in binary floats, 0.07 epochs × 100 updates is more than 7."""
    return Fraction(str(number))
