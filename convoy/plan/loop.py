"""LoopPlan: the length of a run and when things are due in it."""

from dataclasses import dataclass

from convoy.config.schema import RunConfig
from convoy.plan.batch import BatchPlan
from convoy.plan.learning_rate import LearningRatePlan
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

    @property
    def epochs(self) -> float:
        return self.updates / self.updates_per_epoch


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
        reports=_reports(config.report.logs_per_epoch, per_epoch, updates),
        checkpoints=Rhythm(config.checkpoint.ckpts_per_epoch, per_epoch, updates),
        validations=Rhythm(int(validation.validation_mode == "during"), validations, updates),
    )


def _reports(times: int, per_epoch: int, updates: int) -> Rhythm:
    """Without reports on the way there is still one at the end."""
    return Rhythm(times, per_epoch, updates) if times else Rhythm(1, updates, updates)
