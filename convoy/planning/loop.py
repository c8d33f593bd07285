"""LoopPlan: length of a run, schedule of reports, validations and checkpoints, loss scale and
learning-rate changes.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from convoy.config.schema import RunConfig
from convoy.config.sections.outputs import CheckpointConfig, ReportConfig
from convoy.planning.learning_rate import LearningRatePlan
from convoy.planning.topology import BatchPlan


@dataclass(frozen=True)
class EventSchedule:
    """An event `times` per `period` updates, evenly spaced, and at the end; never if `times` is 0.

    With `start`, the first event is after `start` updates.
    """

    times: int
    period: int
    end: int
    start: int = 0

    def is_due(self, update: int) -> bool:
        """Whether the event is due after this update, counted from 1."""
        if self.times == 0:
            return False
        if update in (self.start, self.end):
            return True
        elapsed = update - self.start
        crossed = elapsed * self.times // self.period > (elapsed - 1) * self.times // self.period
        return crossed and elapsed > 0


@dataclass(frozen=True)
class ScaleLevel:
    """A loss scale and the first update (from 0) that uses it."""

    scale: float
    start: int


@dataclass(frozen=True)
class LossScalePlan:
    """The loss scale of each update: constant, stepwise doubling, or automatic.

    Doubling from I to F = I · 2^(n − 1) has n levels. In a run of E epochs, level j (I · 2^j)
    starts after j · floor(E / n) epochs; in a run with fewer epochs than levels, after
    floor(j · T / n) of its T updates.
    """

    initial: float = 1.0
    final: float = 1.0  # `initial` times a power of two
    automatic: bool = False
    updates_per_epoch: int = 1
    updates: int = 1

    @cached_property
    def levels(self) -> tuple[ScaleLevel, ...]:
        count = round(self.final / self.initial).bit_length()
        epochs = self.updates // (count * self.updates_per_epoch)  # per level
        starts = [
            level * epochs * self.updates_per_epoch if epochs else level * self.updates // count
            for level in range(count)
        ]
        return tuple(
            ScaleLevel(self.initial * 2**level, start) for level, start in enumerate(starts)
        )

    @property
    def is_constant(self) -> bool:
        return len(self.levels) == 1 and not self.automatic

    def scale(self, update: int) -> float:
        """Return the loss scale of an update, counted from 0."""
        return next(level.scale for level in reversed(self.levels) if level.start <= update)


NO_LOSS_SCALING = LossScalePlan()


@dataclass(frozen=True)
class LoopPlan:
    """Updates, learning rates, and when reports, checkpoints and validations are due."""

    samples: int  # per epoch, including the dropped remainder
    samples_per_update: int
    micro_batches: int  # per update and replica
    updates_per_epoch: int
    updates: int
    stop_after: int | None
    learning_rate: LearningRatePlan
    reports: EventSchedule
    checkpoints: EventSchedule
    validations: EventSchedule
    averages_checkpoints: bool = False  # after the last update
    epochs_before: float = 0.0  # epochs the initial weights were trained for
    loss_scale: LossScalePlan = NO_LOSS_SCALING
    device_iterations: int = 1  # maximum number of updates in a loop

    def loop_length(self, done: int) -> int:
        """Updates until the next report, validation, checkpoint or end; limited by the option."""
        schedules = (self.reports, self.validations, self.checkpoints)
        for update in range(done + 1, done + self.device_iterations):
            is_end = update in (self.updates, self.stop_after)
            if is_end or any(schedule.is_due(update) for schedule in schedules):
                return update - done
        return self.device_iterations

    @property
    def epochs(self) -> float:
        return self.updates / self.updates_per_epoch

    def epoch_after(self, updates: int) -> float:
        """Epochs after a number of updates, including those before this run."""
        return self.epochs_before + updates / self.updates_per_epoch

    @property
    def first_epoch(self) -> int:
        """The number of this run's first epoch, which no earlier epoch has used."""
        return ceil(self.epochs_before)


def plan_loop(config: RunConfig, batch: BatchPlan, samples: int) -> LoopPlan:
    """Plan the loop over a data source with `samples` samples."""
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
        validations=EventSchedule(
            int(validation.validation_mode == "during"), validations, updates
        ),
        averages_checkpoints=config.average.weight_avg_strategy != "none"
        and config.checkpoint.saves_checkpoints,
        epochs_before=length.epochs_before,
        loss_scale=_loss_scale(config, per_epoch, updates),
        device_iterations=config.batch.device_iterations,
    )


def _reports(config: ReportConfig, per_epoch: int, updates: int) -> EventSchedule:
    """Schedule the reports; there is always one at the end."""
    if config.log_freq is not None:
        return EventSchedule(1, config.log_freq, updates)
    times = config.logs_per_epoch
    return EventSchedule(times, per_epoch, updates) if times else EventSchedule(1, updates, updates)


def _checkpoints(config: CheckpointConfig, per_epoch: int, updates: int) -> EventSchedule:
    """Several per epoch, or one every few epochs, counted back from the end."""
    epochs, offset = config.epochs_per_ckpt, config.ckpt_epochs_offset
    first = 0 if offset is None else offset * per_epoch
    if not epochs:
        return EventSchedule(config.ckpts_per_epoch, per_epoch, updates, first)
    period = epochs * per_epoch
    return EventSchedule(1, period, updates, updates % period if offset is None else first)


def _loss_scale(config: RunConfig, per_epoch: int, updates: int) -> LossScalePlan:
    """Plan the loss scale; with fp32 throughout, automatic scaling stays constant."""
    loss, is_requested = config.loss, config.loss.auto_loss_scaling
    initial = None if is_requested else loss.initial_loss_scaling
    automatic = is_requested and config.precision.precision != "32.32"
    return LossScalePlan(
        initial or loss.loss_scaling, loss.loss_scaling, automatic, per_epoch, updates
    )


_TABLE_ROWS = 12  # of the printed table of changes


@dataclass(frozen=True)
class RateChange:
    """An update at which the learning rate changes."""

    update: int
    epoch: float  # before that update
    rate: float


@dataclass(frozen=True)
class RateTable:
    """Rows of the printed table; `num_omitted` changes are left out before the last row."""

    rows: tuple[RateChange, ...]
    num_omitted: int = 0


def sample_rate_changes(loop: LoopPlan, limit: int) -> list[RateChange]:
    """All changes of the learning rate including the first rate, or at most `limit` samples.

    If there are more, a warm-up is reduced to its ends and the schedule to evenly spaced points.
    """
    rates = loop.learning_rate
    warmup_end, changes = rates.warmup_end, rates.lr_changes
    ramp = range(warmup_end + 1) if warmup_end + 1 + changes.count <= limit else {0, warmup_end}
    points = min(changes.count, limit - len(ramp))
    numbers = (number * (changes.count - 1) // max(1, points - 1) for number in range(points))
    return _distinct_rates(loop, [*sorted(ramp), *map(changes.update_of, numbers)])


def rate_table(loop: LoopPlan) -> RateTable:
    """The ends of the warm-up, then all changes if they fit into the table.

    Otherwise the first changes and the last, or the quarters of the run if every update changes
    the rate.
    """
    warmup_end, changes = loop.learning_rate.warmup_end, loop.learning_rate.lr_changes
    ends = sorted({0, warmup_end})
    rows_left = _TABLE_ROWS - len(ends)
    num_omitted = 0
    if changes.count <= rows_left:
        shown = [*ends, *map(changes.update_of, range(changes.count))]
    elif changes.every_update:
        quarters = [(loop.updates - 1) * quarter // 4 for quarter in range(1, 5)]
        shown = [*ends, *(update for update in quarters if update > warmup_end)]
    else:
        first = rows_left - 2  # one row shows how many are omitted
        shown = [*ends, *map(changes.update_of, range(first)), changes.update_of(changes.count - 1)]
        num_omitted = changes.count - first - 1
    rows = tuple(_distinct_rates(loop, shown))
    return RateTable(rows, num_omitted if len(rows) == len(shown) else 0)


def _distinct_rates(loop: LoopPlan, updates: list[int]) -> list[RateChange]:
    """The updates whose rate differs from that of the previous one in the list."""
    rates = loop.learning_rate
    changes: list[RateChange] = []
    for update in updates:
        rate = rates.rate(update)
        if not changes or rate != changes[-1].rate:
            changes.append(RateChange(update, loop.epoch_after(update), rate))
    return changes
