"""How numbers and events read: one line each, the same in the log and on the screen."""

import math

from convoy.events import (
    Averaged,
    Began,
    Ended,
    Event,
    Noticed,
    Reported,
    Saved,
    Updated,
    Validated,
)
from convoy.report.standing import Standing
from convoy.report.voice import one_line


def duration(seconds: float) -> str:
    """`1:12`, `2:05:09`, `3 d 04:00:00`."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def loss_text(loss: float) -> str:
    return f"{loss:.3f}" if abs(loss) < 1000 else f"{loss:.3g}"


def speed_text(images_per_second: float) -> str:
    """Three figures are all that a measured speed is worth."""
    digits = 0 if images_per_second >= 100 else 1 if images_per_second >= 10 else 2
    return f"{images_per_second:.{digits}f} images/s"


def quality_words(standing: Standing) -> list[str]:
    """`loss 0.412`, `accuracy 86.1 %`, `rate 0.0905`, `412 images/s`: as far as known."""
    words = []
    if standing.reported is not None:
        words += [
            f"loss {loss_text(standing.reported.loss)}",
            f"accuracy {percent(standing.reported.accuracy)}",
            f"rate {standing.reported.learning_rate:.4g}",
        ]
    if standing.images_per_second is not None:
        words.append(speed_text(standing.images_per_second))
    return words


def standing_line(standing: Standing) -> str:
    """The whole state of a run in one line."""
    words = [
        f"epoch {standing.epoch}/{standing.epochs}",
        f"update {standing.update}/{standing.began.updates}",
        *quality_words(standing),
    ]
    if standing.seconds_left is not None:
        words.append(f"left {duration(standing.seconds_left)}")
    return "  ".join(words)


def validation_line(event: Validated) -> str:
    average = _scores(event.average_top1, event.average_top5, event.average_loss)
    return (
        f"validation  update {event.update}{_scores(event.top1, event.top5, event.loss)}"
        f"{f'  average{average}' if average else ''}"
    )


def _scores(top1: float | None, top5: float | None, loss: float | None) -> str:
    """Nothing where nothing was measured."""
    if top1 is None or top5 is None or loss is None:
        return ""
    return f"  top-1 {percent(top1)}  top-5 {percent(top5)}  loss {loss_text(loss)}"


def _began_line(event: Began) -> str:
    length = (
        f"{event.updates} updates of {event.samples_per_update} images, "
        f"{event.updates_per_epoch} updates an epoch"
    )
    return (
        f"goes on after update {event.update} of {length}" if event.update else f"begins {length}"
    )


def _reported_line(event: Reported) -> str:
    scale = f"scale {event.loss_scale:,.10g}  " if event.loss_scale != 1 else ""
    skipped = f"  {event.skipped} skipped" if event.skipped else ""
    return (
        f"update {event.update}  epoch {event.epoch:.2f}  loss {loss_text(event.loss)}  "
        f"accuracy {percent(event.accuracy)}  rate {event.learning_rate:.4g}  {scale}"
        f"{speed_text(event.images_per_second)}{skipped}{_left_out(event.left_out)}"
    )


def _left_out(micro_batches: int) -> str:
    """What the means of a report are not about."""
    if not micro_batches:
        return ""
    return (
        f"  {micro_batches} micro-batch{'es' * (micro_batches > 1)} without a finite loss left out"
    )


def average_line(event: Averaged) -> str:
    text = average_text(event.strategy, event.checkpoints)
    measured = _scores(event.top1, event.top5, event.loss)
    return f"average  {one_line(event.path)}  {text}{measured}"


def average_text(strategy: str, checkpoints: int) -> str:
    """`mean of 5 checkpoints`, `ema of every update`."""
    if not checkpoints:
        return f"{strategy} of every update"
    return f"{strategy} of {checkpoints} checkpoint{'s' * (checkpoints > 1)}"


def event_line(event: Event) -> str:
    """What happened, in one line."""
    match event:
        case Began():
            return _began_line(event)
        case Updated():
            return f"update {event.update} in {event.seconds:.3f} s"
        case Reported():
            return _reported_line(event)
        case Validated():
            return f"{validation_line(event)}  {event.samples} images in {event.seconds:.1f} s"
        case Saved():
            return f"checkpoint  {one_line(event.path)}  in {event.seconds:.1f} s"
        case Averaged():
            return average_line(event)
        case Noticed():
            return f"notice  {one_line(event.text)} ({one_line(event.kind)}, update {event.update})"
        case Ended():
            return f"ended after update {event.update}: {one_line(event.reason)}"


def done_words(done: int, total: int, unit: str) -> str:
    """Bytes as megabytes, all else as it is."""
    if unit == "bytes":
        return f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
    return f"{done:,} of {total:,} {unit}"
