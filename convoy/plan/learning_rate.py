"""The learning rate of every update, as a pure function of the update's number.

update i (from 0), epochs so far e = i / updates per epoch, changes of the rate k = floor(e · f),
f = changes per epoch (every update when --lr-scheduler-freq is 0), K = epochs of the run · f

lr is --lr, or 2 ^ exponent · samples per update; with --lr-drops f = drops / epochs of the run

step         lr · decay ^ drops, or lr · multiplier of that drop;
             a drop has come when its epoch · f (or its share · K) ≤ k
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

from convoy.config.sections.learning_rate import LearningRateConfig


@dataclass(frozen=True)
class Moves:
    """Updates with a rate of their own. A run may have millions, so they are not listed."""

    count: int
    at: Callable[[int], int]  # the update of the first one is at(0)
    at_every_update: bool = False


@dataclass(frozen=True)
class LearningRatePlan:
    """The rate of each update of a run."""

    config: LearningRateConfig
    updates_per_epoch: int
    updates: int
    samples_per_update: int = 1

    def rate(self, update: int) -> float:
        """The rate used by update `update`, counted from 0."""
        return self._value(update) * self._ramp(update)

    @cached_property
    def initial(self) -> float:
        """The rate that the schedule starts from, before any warm-up."""
        exponent = self.config.base_learning_rate_exponent
        if exponent is not None:
            return float(2.0**exponent * self.samples_per_update)
        assert self.config.lr is not None, "the rules want one of the two"
        return self.config.lr

    @property
    def highest(self) -> float:
        """The largest rate of the run.

        A run may have millions of updates, so stretches of it are halved until none can hold more
        than the best that was found. Where the schedule rises, that is at an end of a stretch;
        where it falls, a stretch holds no more than its first value, as far as warm-up allows.
        """
        ends = self._turns()
        best = max(map(self.rate, ends))
        stretches = list(pairwise(ends))
        while stretches:
            first, last = stretches.pop()
            if last - first < 2 or self._value(first) * self._ramp(last) <= best:
                continue
            middle = (first + last) // 2
            best = max(best, self.rate(middle))
            stretches += [(first, middle), (middle, last)]
        return best

    def _turns(self) -> list[int]:
        """Updates between which the schedule only falls, or only rises, and the ramp as well."""
        drops = self._drop_updates
        turns = [0, math.ceil(self._warm_updates), *drops, *(drop - 1 for drop in drops)]
        return sorted({min(max(turn, 0), self.updates - 1) for turn in [*turns, self.updates]})

    @property
    def _drop_updates(self) -> list[int]:
        return [math.ceil(math.ceil(point) / self._pace) for point in self._drops]

    @cached_property
    def warm(self) -> int:
        """The first update whose rate warm-up leaves alone; the last one if there is none."""
        return min(math.ceil(self._warm_updates), self.updates - 1)

    @cached_property
    def moves(self) -> Moves:
        """Where the schedule may move once it is warm."""
        if self.config.lr_schedule == "step":
            drops = {one for one in self._drop_updates if self.warm < one < self.updates}
            return Moves(len(drops), sorted(drops).__getitem__)
        if self._pace >= 1:
            return Moves(self.updates - 1 - self.warm, lambda number: self.warm + 1 + number, True)
        before, after = (math.floor(one * self._pace) for one in (self.warm, self.updates - 1))
        return Moves(after - before, lambda number: math.ceil((before + 1 + number) / self._pace))

    def _value(self, update: int) -> float:
        """The schedule without warm-up."""
        config, initial, changes = self.config, self.initial, math.floor(update * self._pace)
        match config.lr_schedule:
            case "step":
                drops = sum(point <= changes for point in self._drops)
                multipliers = config.lr_multipliers
                return initial * (multipliers[drops] if multipliers else config.lr_decay**drops)
            case "cosine":
                return initial * 0.5 * (1 + math.cos(math.pi * float(changes / self._all_changes)))
            case "exponential":
                # By then every decay but 1 has come to 0, and a float cannot count on for ever.
                return float(initial * config.lr_decay ** min(changes, 10**30))
            case _:
                return self._polynomial(changes)

    def _polynomial(self, changes: int) -> float:
        config, end = self.config, self.config.abs_end_learning_rate
        if end is None:
            end = config.poly_lr_end_ratio * self.initial
        warm = self._warm_epochs * self._frequency
        if changes <= warm:
            return self.initial
        left = float(1 - (changes - warm) / (self._all_changes - warm))
        return float((self.initial - end) * left**config.poly_lr_decay_power + end)

    def _ramp(self, update: int) -> float:
        """The share of it that warm-up allows."""
        warm = self._warm_updates
        return float(update / warm) if update < warm else 1.0

    @cached_property
    def _warm_updates(self) -> Fraction:
        return self._warm_epochs * self.updates_per_epoch

    @cached_property
    def _warm_epochs(self) -> Fraction:
        return _as_typed(self.config.warmup_epoch)

    @cached_property
    def _frequency(self) -> Fraction:
        """Changes per epoch."""
        if self.config.lr_drops is not None:
            return Fraction(self.config.lr_drops * self.updates_per_epoch, self.updates)
        return _as_typed(self.config.lr_scheduler_freq) or Fraction(self.updates_per_epoch)

    @cached_property
    def _all_changes(self) -> Fraction:
        return self.updates * self._pace

    @cached_property
    def _pace(self) -> Fraction:
        """Changes per update."""
        return self._frequency / self.updates_per_epoch

    @cached_property
    def _drops(self) -> tuple[Fraction, ...]:
        """The changes at which step drops."""
        config = self.config
        by_epoch = (_as_typed(epoch) * self._frequency for epoch in config.lr_epoch_decay)
        by_share = (_as_typed(share) * self._all_changes for share in config.lr_share_decay)
        return (*by_epoch, *by_share)


def _as_typed(number: float) -> Fraction:
    """The decimal as typed: in binary, 0.07 epochs of 100 updates would end after update 7."""
    return Fraction(str(number))
