"""LoopPlan: the length of a run and when things are due in it."""

from dataclasses import dataclass
from math import ceil

from convoy.config.schema import RunConfig
from convoy.config.sections.keeping import CheckpointConfig, ReportConfig
from convoy.plan.batch import BatchPlan
from convoy.plan.learning_rate import LearningRatePlan
from convoy.plan.loss_scale import UNSCALED, LossScalePlan
from convoy.plan.rhythm import Rhythm


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
