"""LoopPlan: the length of a run, when reports, validations and checkpoints are due, the loss scale
of every update, and where its learning rate changes.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from convoy.config.schema import RunConfig
from convoy.config.sections.checkpoint import CheckpointConfig
from convoy.config.sections.report import ReportConfig
from convoy.plan.learning_rate import LearningRatePlan
from convoy.plan.topology import BatchPlan


@dataclass(frozen=True)
class Rhythm:
    """`times` in every `period` updates, evenly spread, and at the very end; 0 times is never.

    The first period may begin later: then it happens after `first` updates, and not before.
    """

    times: int
    period: int
    end: int
    first: int = 0

    def due(self, update: int) -> bool:
        """Whether it happens after this update, counted from 1."""
        if self.times == 0:
            return False
        if update in (self.first, self.end):
            return True
        since = update - self.first
        crossed = since * self.times // self.period > (since - 1) * self.times // self.period
        return crossed and since > 0


@dataclass(frozen=True)
class Level:
    """One scale, from an update (counted from 0) on."""

    scale: float
    first: int


@dataclass(frozen=True)
class LossScalePlan:
    """The factor of the loss in each update: constant, a ladder, or one that follows the gradients.

    A ladder from I to F = I · 2^(n − 1) has n levels. Level j, I · 2^j, begins j · floor(E / n)
    epochs after the start of a run of E epochs; in a run of fewer epochs than levels, after
    floor(j · T / n) of its T updates.
    """

    first: float = 1.0
    last: float = 1.0  # the first one, doubled some times
    automatic: bool = False
    updates_per_epoch: int = 1
    updates: int = 1

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        count = round(self.last / self.first).bit_length()
        epochs = self.updates // (count * self.updates_per_epoch)  # of one level
        starts = [
            level * epochs * self.updates_per_epoch if epochs else level * self.updates // count
            for level in range(count)
        ]
        return tuple(Level(self.first * 2**level, start) for level, start in enumerate(starts))

    @property
    def is_constant(self) -> bool:
        return len(self.levels) == 1 and not self.automatic

    def scale(self, update: int) -> float:
        """The scale of this update, counted from 0."""
        return next(one.scale for one in reversed(self.levels) if one.first <= update)


UNSCALED = LossScalePlan()


@dataclass(frozen=True)
class LoopPlan:
    """Updates, their rates, and the rhythm of reports, checkpoints and validation."""

    samples: int  # of one epoch, before the remainder is dropped
    samples_per_update: int
    micro_batches: int  # of one update on one replica
    updates_per_epoch: int
    updates: int
    stop_after: int | None
    learning_rate: LearningRatePlan
    reports: Rhythm
    checkpoints: Rhythm
    validations: Rhythm
    averages: bool = False  # the checkpoints, when all updates are done
    epochs_before: float = 0.0  # that the first weights were trained for
    loss_scale: LossScalePlan = UNSCALED

    @property
    def epochs(self) -> float:
        return self.updates / self.updates_per_epoch

    def epoch_after(self, updates: int) -> float:
        """Epochs so far, those before this run too."""
        return self.epochs_before + updates / self.updates_per_epoch

    @property
    def first_epoch(self) -> int:
        """The number of the first epoch of this run: one that no epoch before it has had."""
        return ceil(self.epochs_before)


def plan_loop(config: RunConfig, batch: BatchPlan, samples: int) -> LoopPlan:
    """The loop over a source of so many samples."""
    per_epoch = batch.updates_per_epoch(samples)
    length = config.length
    updates = length.updates or batch.total_updates(samples, length.epoch or 1)
    validation = config.validation
    validations = per_epoch * validation.validation_frequency
    return LoopPlan(
        samples=samples,
        samples_per_update=batch.samples_per_update,
        micro_batches=batch.gradient_accumulation,
        updates_per_epoch=per_epoch,
        updates=updates,
        stop_after=length.stop_after,
        learning_rate=LearningRatePlan(
            config.learning_rate, per_epoch, updates, batch.samples_per_update
        ),
        reports=_reports(config.report, per_epoch, updates),
        checkpoints=_checkpoints(config.checkpoint, per_epoch, updates),
        validations=Rhythm(int(validation.validation_mode == "during"), validations, updates),
        averages=config.average.weight_avg_strategy != "none" and config.checkpoint.saves,
        epochs_before=length.epochs_before,
        loss_scale=_loss_scale(config, per_epoch, updates),
    )


def _reports(wish: ReportConfig, per_epoch: int, updates: int) -> Rhythm:
    """Without reports on the way there is still one at the end."""
    if wish.log_freq is not None:
        return Rhythm(1, wish.log_freq, updates)
    times = wish.logs_per_epoch
    return Rhythm(times, per_epoch, updates) if times else Rhythm(1, updates, updates)


def _checkpoints(wish: CheckpointConfig, per_epoch: int, updates: int) -> Rhythm:
    """Some in every epoch, or one in some epochs: these are counted back from the end."""
    epochs, offset = wish.epochs_per_ckpt, wish.ckpt_epochs_offset
    first = 0 if offset is None else offset * per_epoch
    if not epochs:
        return Rhythm(wish.ckpts_per_epoch, per_epoch, updates, first)
    period = epochs * per_epoch
    return Rhythm(1, period, updates, updates % period if offset is None else first)


def _loss_scale(config: RunConfig, per_epoch: int, updates: int) -> LossScalePlan:
    """Where all numbers have 32 bits, a scale has nothing to follow and stays."""
    wish, follows = config.loss, config.loss.auto_loss_scaling
    first = None if follows else wish.initial_loss_scaling
    automatic = follows and config.precision.precision != "32.32"
    return LossScalePlan(
        first or wish.loss_scaling, wish.loss_scaling, automatic, per_epoch, updates
    )


_ROWS = 12  # of the table of changes for people


@dataclass(frozen=True)
class RateChange:
    """An update whose rate is another one than that of the update before it."""

    update: int
    epoch: float  # before that update
    rate: float


@dataclass(frozen=True)
class ShownChanges:
    """Rows of a table; `left_out` more changes come before the last of them."""

    rows: tuple[RateChange, ...]
    left_out: int = 0


def rate_changes(loop: LoopPlan, most: int) -> list[RateChange]:
    """Every change, the first rate included. Of more than `most`, points on the way.

    A warm-up is then told by its ends, and a schedule that moves too often by points that lie
    evenly in it.
    """
    rates = loop.learning_rate
    warm, moves = rates.warm, rates.moves
    ramp = range(warm + 1) if warm + 1 + moves.count <= most else {0, warm}
    numbers = _evenly(moves.count, most - len(ramp))
    return _changed(loop, [*sorted(ramp), *map(moves.at, numbers)])


def shown_changes(loop: LoopPlan) -> ShownChanges:
    """The ends of the warm-up, then each move if they are few.

    Of many the first ones and the last; of a rate that moves at every update the quarters.
    """
    warm, moves = loop.learning_rate.warm, loop.learning_rate.moves
    ends = sorted({0, warm})
    room = _ROWS - len(ends)
    left_out = 0
    if moves.count <= room:
        shown = [*ends, *map(moves.at, range(moves.count))]
    elif moves.at_every_update:
        quarters = [(loop.updates - 1) * quarter // 4 for quarter in range(1, 5)]
        shown = [*ends, *(one for one in quarters if one > warm)]
    else:
        first = room - 2  # a line tells how many are left out
        shown = [*ends, *map(moves.at, range(first)), moves.at(moves.count - 1)]
        left_out = moves.count - first - 1
    rows = tuple(_changed(loop, shown))
    return ShownChanges(rows, left_out if len(rows) == len(shown) else 0)


def _evenly(count: int, most: int) -> list[int]:
    """Numbers below `count`: all, or so many with the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [number * (count - 1) // (most - 1) for number in range(most)]


def _changed(loop: LoopPlan, updates: list[int]) -> list[RateChange]:
    """Those of them at which the rate is another one than at the one before."""
    rates = loop.learning_rate
    changes: list[RateChange] = []
    for update in updates:
        rate = rates.rate(update)
        if not changes or rate != changes[-1].rate:
            changes.append(RateChange(update, loop.epoch_after(update), rate))
    return changes
