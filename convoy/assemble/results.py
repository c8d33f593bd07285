"""What a summary says of a run beside its own weights: the average, and the phase behind it."""

from convoy.config.schema import RunConfig
from convoy.events import Averaged
from convoy.plan.places import FINE_TUNE
from convoy.report.summary import PENDING, AverageSummary, FineTuneSummary, Summary


def average_summary(made: Averaged | None) -> AverageSummary | None:
    """Of the checkpoints, if they were averaged."""
    if made is None:
        return None
    return AverageSummary(
        path=made.path,
        strategy=made.strategy,
        checkpoints=made.checkpoints,
        weights_sha256=made.weights_sha256,
        top1=made.top1,
        top5=made.top5,
    )


def fine_tuning_to_come(config: RunConfig) -> FineTuneSummary | None:
    """Of a phase that has not begun, if there will be one."""
    if not config.fine_tune.half_res_training:
        return None
    return FineTuneSummary(path=FINE_TUNE, exit_reason=PENDING)


def fine_tune_summary(made: Summary) -> FineTuneSummary:
    """Of the second phase, out of its own summary."""
    return FineTuneSummary(
        path=FINE_TUNE,
        exit_reason=made.exit_reason,
        weights_sha256=made.weights_sha256,
        top1=made.top1,
        top5=made.top5,
        updates=made.updates,
        epochs=made.epochs,
    )
