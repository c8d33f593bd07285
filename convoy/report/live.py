"""Live display of a run and progress bars on a terminal. Only this module uses rich."""

import atexit
import sys
import time
from typing import IO, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from convoy.events import Averaged, Began, Ended, Event, Noticed, Reported, Updated
from convoy.report.format import (
    Clock,
    ProgressState,
    event_line,
    format_count,
    format_eta,
    metrics_line,
    validation_line,
)
from convoy.report.stream import SafeStream

_SECONDS_BETWEEN_FRAMES = 0.1


class LiveBar:
    """A progress bar that appears with the first call; drawn without a background thread."""

    def __init__(
        self, stream: TextIO, description: str, unit: str, clock: Clock = time.monotonic
    ) -> None:
        self._unit = unit
        self._clock = clock
        self._drawn_at = clock() - _SECONDS_BETWEEN_FRAMES
        console = Console(file=cast(IO[str], SafeStream(stream)), force_terminal=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
        )
        self._task = self._progress.add_task(description, count="")

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if now - self._drawn_at < _SECONDS_BETWEEN_FRAMES and done < total:
            return
        self._drawn_at = now
        if done == 0:  # another task
            self._progress.reset(self._task)
        self._progress.update(
            self._task, completed=done, total=total, count=format_count(done, total, self._unit)
        )
        self._progress.start()  # no-op after the first call
        self._progress.refresh()
        if done >= total:  # another bar may follow
            self._progress.stop()

    def close(self) -> None:
        """Leave the last frame in place and restore the cursor."""
        self._progress.stop()


_MAX_WIDTH = 78  # fits nearly every window, so resizing does not break the frame


def render_frame(state: ProgressState, width: int) -> Group:
    """Render the display: three lines that never wrap.

    epoch 2/5  ━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━  320/1250  25 %  ETA 1:12
    loss 0.412  accuracy 86.1 %  lr 0.0905  412 images/s
    validation  update 250  top-1 84.2 %  top-5 99.0 %  loss 0.501
    """
    rows: list[RenderableType] = [
        _bar_line(state, min(width, _MAX_WIDTH)),
        _line(metrics_line(state)),
    ]
    if state.validated is not None:
        rows.append(_line(validation_line(state.validated)))
    return Group(*rows)


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _bar_line(state: ProgressState, width: int) -> Table:
    """Epoch, bar, count, percentage and time left; the bar fills the remaining width."""
    updates = state.began.updates
    prefix = f"epoch {state.epoch}/{state.epochs}  "
    suffix = f"  {state.update}/{updates}  {100 * state.update // max(1, updates)} %"
    if eta := format_eta(state):
        suffix += f"  {eta}"
    remaining = max(1, width - len(prefix) - len(suffix))
    row = Table.grid()
    bar = ProgressBar(total=max(1, updates), completed=state.update, width=remaining)
    row.add_row(_line(prefix), bar, _line(suffix))
    return row


class LiveProgress:
    """Live display, redrawn on events; no background thread competes with training."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._safe_stream = SafeStream(stream)
        self._clock = clock
        self._state = ProgressState(clock)
        self._drawn_at = clock() - _SECONDS_BETWEEN_FRAMES
        # rich ends the program on a broken pipe, so it must never see one.
        self._console = Console(file=cast(IO[str], self._safe_stream), force_terminal=True)
        self._live: Live | None = None

    def write(self, event: Event) -> None:
        self._state.handle_event(event)
        if isinstance(event, Ended):
            self.close()
        if isinstance(event, Began | Averaged | Noticed | Ended):
            # Printed above the frame, if there is one.
            self._console.print(Text(event_line(event)), soft_wrap=True)
            if isinstance(event, Began):
                self._open()
                self._draw()
        elif (
            not isinstance(event, Updated | Reported)
            or self._clock() - self._drawn_at >= _SECONDS_BETWEEN_FRAMES
        ):
            self._draw()

    def close(self) -> None:
        """Leave the last frame in place and restore the cursor."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._safe_stream.close()
        atexit.unregister(self.close)

    def _open(self) -> None:
        """Open a frame; a run that starts again before it ended keeps its frame."""
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                get_renderable=lambda: render_frame(self._state, self._console.width),
                redirect_stdout=self._stream is sys.stdout,
                # Warnings go above the frame; stderr redirected to a file stays there.
                redirect_stderr=SafeStream(sys.stderr).isatty(),
            )
            self._live.start()
            atexit.register(self.close)  # restores the cursor even after a crash

    def _draw(self) -> None:
        self._drawn_at = self._clock()
        if self._live is not None:
            self._live.refresh()
