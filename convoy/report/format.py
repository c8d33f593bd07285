"""Formatting of numbers, events and progress for the log, the terminal and the summary."""

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
from convoy.text import one_line, pluralize

Clock = Callable[[], float]


class Throughput:
    """Images per second: over recent updates for the display, over all for the summary."""

    def __init__(
        self, samples_per_update: int, window: int = 20, clock: Clock = time.monotonic
    ) -> None:
        self._samples_per_update = samples_per_update
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=window)
        self._seconds = 0.0
        self._updates = 0
        self._is_warmed_up = False  # the first update is slower and is excluded
        self._latest = clock()

    def add(self, seconds: float) -> None:
        self._latest = self._clock()
        if self._is_warmed_up:
            self._recent.append(seconds)
            self._seconds += seconds
            self._updates += 1
        self._is_warmed_up = True

    @property
    def images_per_second(self) -> float | None:
        """Over the last updates; None before the second one."""
        return self._rate(len(self._recent), sum(self._recent))

    @property
    def mean_images_per_second(self) -> float | None:
        """Over all updates but the first."""
        return self._rate(self._updates, self._seconds)

    def seconds_left(self, updates: int) -> float | None:
        """Estimate the time for this many updates; counts down between updates."""
        if not self._recent:
            return None
        seconds_per_update = sum(self._recent) / len(self._recent)
        # Capped, since a pause for validation is not progress.
        elapsed = min(self._clock() - self._latest, seconds_per_update)
        return max(0.0, updates * seconds_per_update - elapsed)

    def _rate(self, updates: int, seconds: float) -> float | None:
        return updates * self._samples_per_update / seconds if seconds > 0 else None


class ProgressState:
    """The latest event of each type, and values derived from them."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.began = Began(0, 0, 1, 0)
        self.update = 0
        self.reported: Reported | None = None
        self.validated: Validated | None = None
        self._throughput = Throughput(0, clock=clock)

    def handle_event(self, event: Event) -> None:
        if not isinstance(event, Saved | Noticed):  # a save belongs to an earlier update
            self.update = event.update
        match event:
            case Began():
                self.began = event
                self._throughput = Throughput(event.samples_per_update, clock=self._clock)
            case Updated():
                self._throughput.add(event.seconds)
            case Reported():
                self.reported = event
            case Validated():
                self.validated = event

    @property
    def epoch(self) -> int:
        """The epoch of the last update, counted from 1, including epochs before the run."""
        within = max(0, self.update - 1) // max(1, self.began.updates_per_epoch)
        return self.began.first_epoch + within + 1

    @property
    def epochs(self) -> int:
        """The number of epochs; an incomplete last epoch counts."""
        epochs = -(-self.began.updates // max(1, self.began.updates_per_epoch))
        return self.began.first_epoch + max(1, epochs)

    @property
    def images_per_second(self) -> float | None:
        """The reported throughput; before the first report, the measured one."""
        if self.reported is not None:
            return self.reported.images_per_second
        return self._throughput.images_per_second

    @property
    def seconds_left(self) -> float | None:
        return self._throughput.seconds_left(self.began.updates - self.update)


def format_duration(seconds: float) -> str:
    """Format as `1:12`, `2:05:09`, `3 d 04:00:00`."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def format_percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def format_loss(loss: float) -> str:
    return f"{loss:.3f}" if abs(loss) < 1000 else f"{loss:.3g}"


def format_throughput(images_per_second: float) -> str:
    """Format with about three significant digits; a measurement has no more."""
    digits = 0 if images_per_second >= 100 else 1 if images_per_second >= 10 else 2
    return f"{images_per_second:.{digits}f} images/s"


def metrics_line(state: ProgressState) -> str:
    """`loss 0.412  accuracy 86.1 %  lr 0.0905  412 images/s`; unknown values are omitted."""
    parts = []
    if state.reported is not None:
        parts += [
            f"loss {format_loss(state.reported.loss)}",
            f"accuracy {format_percent(state.reported.accuracy)}",
            f"lr {state.reported.learning_rate:.4g}",
        ]
    if state.images_per_second is not None:
        parts.append(format_throughput(state.images_per_second))
    return "  ".join(parts)


def format_eta(state: ProgressState) -> str:
    """`ETA 1:12`; empty if unknown."""
    return "" if state.seconds_left is None else f"ETA {format_duration(state.seconds_left)}"


def progress_line(state: ProgressState) -> str:
    epoch = f"epoch {state.epoch}/{state.epochs}"
    update = f"update {state.update}/{state.began.updates}"
    parts = (epoch, update, metrics_line(state), format_eta(state))
    return "  ".join(part for part in parts if part)


def validation_line(event: Validated) -> str:
    scores = _format_scores(event.top1, event.top5, event.loss)
    average = _format_scores(event.average_top1, event.average_top5, event.average_loss)
    return f"validation  update {event.update}{scores}{average and f'  average{average}'}"


def _format_scores(top1: float | None, top5: float | None, loss: float | None) -> str:
    """Format accuracy and loss; empty without a validation."""
    if top1 is None or top5 is None or loss is None:
        return ""
    return f"  top-1 {format_percent(top1)}  top-5 {format_percent(top5)}  loss {format_loss(loss)}"


def _began_line(event: Began) -> str:
    start = f"resuming after update {event.update} of" if event.update else "starting"
    return (
        f"{start} {pluralize(event.updates, 'update')} of "
        f"{pluralize(event.samples_per_update, 'image')}, "
        f"{pluralize(event.updates_per_epoch, 'update')} per epoch"
    )


def _reported_line(event: Reported) -> str:
    scale = f"scale {event.loss_scale:,.10g}  " if event.loss_scale != 1 else ""
    skipped = f"  {event.skipped} skipped" if event.skipped else ""
    excluded = f"  {pluralize(event.left_out, 'micro-batch')} with a non-finite loss excluded"
    return (
        f"update {event.update}  epoch {event.epoch:.2f}  loss {format_loss(event.loss)}  "
        f"accuracy {format_percent(event.accuracy)}  lr {event.learning_rate:.4g}  {scale}"
        f"{format_throughput(event.images_per_second)}{skipped}{excluded if event.left_out else ''}"
    )


def describe_average(strategy: str, checkpoints: int) -> str:
    """`mean of 5 checkpoints`, `ema over all updates`."""
    if not checkpoints:
        return f"{strategy} over all updates"
    return f"{strategy} of {pluralize(checkpoints, 'checkpoint')}"


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
            text = describe_average(event.strategy, event.checkpoints)
            scores = _format_scores(event.top1, event.top5, event.loss)
            return f"average  {one_line(event.path)}  {text}{scores}"
        case Noticed():
            when = f" (update {event.update})" if event.update else ""
            return f"notice  {one_line(event.text)}{when}"
        case Ended():
            if event.reason == "done":
                return f"finished after update {event.update}"
            return f"stopped after update {event.update}: {describe_reason(event.reason)}"


def describe_reason(reason: str) -> str:
    """The reason why a run ended early, as one line."""
    return "--stop-after" if reason == "limit" else one_line(reason)


def format_count(done: int, total: int, unit: str) -> str:
    """`12 of 340 MB`, `7 of 9 files`."""
    if unit == "bytes":
        return f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
    return f"{done:,} of {total:,} {unit}"
