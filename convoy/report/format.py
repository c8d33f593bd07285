"""Text of numbers, events and progress: the same in the log, on a terminal and at the end."""

import math
import time
from collections import deque
from collections.abc import Callable

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
from convoy.text import counted, one_line

Clock = Callable[[], float]


class Throughput:
    """A mean over the last updates for the display, and one over all for the summary."""

    def __init__(
        self, samples_per_update: int, window: int = 20, clock: Clock = time.monotonic
    ) -> None:
        self._samples_per_update = samples_per_update
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=window)
        self._seconds = 0.0
        self._updates = 0
        self._is_warm = False  # the first update is slower and does not count
        self._latest = clock()

    def take(self, seconds: float) -> None:
        self._latest = self._clock()
        if self._is_warm:
            self._recent.append(seconds)
            self._seconds += seconds
            self._updates += 1
        self._is_warm = True

    @property
    def images_per_second(self) -> float | None:
        """Over the last updates; None before the second one."""
        return self._rate(len(self._recent), sum(self._recent))

    @property
    def overall(self) -> float | None:
        """Over all updates but the first."""
        return self._rate(self._updates, self._seconds)

    def seconds_left(self, updates: int) -> float | None:
        """For that many more updates at the pace of the last ones; runs down between them."""
        if not self._recent:
            return None
        pace = sum(self._recent) / len(self._recent)
        since = min(self._clock() - self._latest, pace)  # a pause for validation is no progress
        return max(0.0, updates * pace - since)

    def _rate(self, updates: int, seconds: float) -> float | None:
        return updates * self._samples_per_update / seconds if seconds > 0 else None


class ProgressState:
    """The newest event of each type, and what follows from them."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.began = Began(0, 0, 1, 0)
        self.update = 0
        self.reported: Reported | None = None
        self.validated: Validated | None = None
        self._throughput = Throughput(0, clock=clock)

    def take(self, event: Event) -> None:
        if not isinstance(event, Saved | Noticed):  # a save is of an earlier update
            self.update = event.update
        match event:
            case Began():
                self.began = event
                self._throughput = Throughput(event.samples_per_update, clock=self._clock)
            case Updated():
                self._throughput.take(event.seconds)
            case Reported():
                self.reported = event
            case Validated():
                self.validated = event

    @property
    def epoch(self) -> int:
        """The epoch of the last update, counted from 1, after those before the run."""
        within = max(0, self.update - 1) // max(1, self.began.updates_per_epoch)
        return self.began.first_epoch + within + 1

    @property
    def epochs(self) -> int:
        """A last epoch that ends early counts."""
        epochs = -(-self.began.updates // max(1, self.began.updates_per_epoch))
        return self.began.first_epoch + max(1, epochs)

    @property
    def images_per_second(self) -> float | None:
        """As reported; before the first report, as measured here."""
        if self.reported is not None:
            return self.reported.images_per_second
        return self._throughput.images_per_second

    @property
    def seconds_left(self) -> float | None:
        return self._throughput.seconds_left(self.began.updates - self.update)


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


def metrics_line(state: ProgressState) -> str:
    """`loss 0.412  accuracy 86.1 %  rate 0.0905  412 images/s`: as far as known."""
    parts = []
    if state.reported is not None:
        parts += [
            f"loss {loss_text(state.reported.loss)}",
            f"accuracy {percent(state.reported.accuracy)}",
            f"rate {state.reported.learning_rate:.4g}",
        ]
    if state.images_per_second is not None:
        parts.append(speed_text(state.images_per_second))
    return "  ".join(parts)


def time_left(state: ProgressState) -> str:
    """`left 1:12`; empty while it is unknown."""
    return "" if state.seconds_left is None else f"left {duration(state.seconds_left)}"


def progress_line(state: ProgressState) -> str:
    epoch = f"epoch {state.epoch}/{state.epochs}"
    update = f"update {state.update}/{state.began.updates}"
    parts = (epoch, update, metrics_line(state), time_left(state))
    return "  ".join(part for part in parts if part)


def validation_line(event: Validated) -> str:
    average = _scores(event.average_top1, event.average_top5, event.average_loss)
    return (
        f"validation  update {event.update}{_scores(event.top1, event.top5, event.loss)}"
        f"{f'  average{average}' if average else ''}"
    )


def _scores(top1: float | None, top5: float | None, loss: float | None) -> str:
    """Empty if nothing was measured."""
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
    left_out = ""  # of the means
    if event.left_out:
        left_out = f"  {counted(event.left_out, 'micro-batch')} without a finite loss left out"
    return (
        f"update {event.update}  epoch {event.epoch:.2f}  loss {loss_text(event.loss)}  "
        f"accuracy {percent(event.accuracy)}  rate {event.learning_rate:.4g}  {scale}"
        f"{speed_text(event.images_per_second)}{skipped}{left_out}"
    )


def average_text(strategy: str, checkpoints: int) -> str:
    """`mean of 5 checkpoints`, `ema of every update`."""
    if not checkpoints:
        return f"{strategy} of every update"
    return f"{strategy} of {counted(checkpoints, 'checkpoint')}"


def event_line(event: Event) -> str:
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
            text = average_text(event.strategy, event.checkpoints)
            scores = _scores(event.top1, event.top5, event.loss)
            return f"average  {one_line(event.path)}  {text}{scores}"
        case Noticed():
            return f"notice  {one_line(event.text)} ({one_line(event.kind)}, update {event.update})"
        case Ended():
            return f"ended after update {event.update}: {one_line(event.reason)}"


def count_text(done: int, total: int, unit: str) -> str:
    """`12 of 340 MB`, `7 of 9 files`."""
    if unit == "bytes":
        return f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
    return f"{done:,} of {total:,} {unit}"
