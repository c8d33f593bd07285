"""The live display of a run and progress bars on a terminal. Only this file knows rich."""

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
    count_text,
    event_line,
    metrics_line,
    time_left,
    validation_line,
)
from convoy.report.stream import SafeStream

_SECONDS_BETWEEN_FRAMES = 0.1


class LiveBar:
    """Appears with the first call, and draws without a thread of its own."""

    def __init__(self, stream: TextIO, what: str, unit: str, clock: Clock = time.monotonic) -> None:
        self._what, self._unit = what, unit
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
        self._task = self._progress.add_task(what, count="")

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if now - self._drawn_at < _SECONDS_BETWEEN_FRAMES and done < total:
            return
        self._drawn_at = now
        if done == 0:  # another task
            self._progress.reset(self._task)
        self._progress.update(
            self._task, completed=done, total=total, count=count_text(done, total, self._unit)
        )
        self._progress.start()  # does nothing the second time
        self._progress.refresh()
        if done >= total:  # the next bar may be another one
            self._progress.stop()

    def close(self) -> None:
        """Leave the last frame in place and restore the cursor."""
        self._progress.stop()


_WIDEST = 78  # a frame that fits nearly every window is not broken by a resize


def frame(state: ProgressState, width: int) -> Group:
    """Three lines that never wrap.

    epoch 2/5  ━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━  320/1250  25 %  left 1:12
    loss 0.412  accuracy 86.1 %  rate 0.0905  412 images/s
    validation  update 250  top-1 84.2 %  top-5 99.0 %  loss 0.501
    """
    rows: list[RenderableType] = [
        _bar_line(state, min(width, _WIDEST)),
        _line(metrics_line(state)),
    ]
    if state.validated is not None:
        rows.append(_line(validation_line(state.validated)))
    return Group(*rows)


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _bar_line(state: ProgressState, width: int) -> Table:
    """Epoch, bar, count, share and time left; the bar takes the rest of the width."""
    updates = state.began.updates
    before = f"epoch {state.epoch}/{state.epochs}  "
    after = f"  {state.update}/{updates}  {100 * state.update // max(1, updates)} %"
    if left := time_left(state):
        after += f"  {left}"
    remaining = max(1, width - len(before) - len(after))
    row = Table.grid()
    bar = ProgressBar(total=max(1, updates), completed=state.update, width=remaining)
    row.add_row(_line(before), bar, _line(after))
    return row


class LiveProgress:
    """Draws on events, without a thread of its own: nothing runs beside the training."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._safe = SafeStream(stream)
        self._clock = clock
        self._state = ProgressState(clock)
        self._drawn_at = clock() - _SECONDS_BETWEEN_FRAMES
        # rich ends the program on a broken pipe, so it must never see one.
        self._console = Console(file=cast(IO[str], self._safe), force_terminal=True)
        self._live: Live | None = None

    def write(self, event: Event) -> None:
        self._state.take(event)
        if isinstance(event, Ended):
            self.close()
        if isinstance(event, Began | Averaged | Noticed | Ended):
            # Above the frame while there is one.
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
        self._safe.close()
        atexit.unregister(self.close)

    def _open(self) -> None:
        """A new frame; a run that begins again without an end keeps its frame."""
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                get_renderable=lambda: frame(self._state, self._console.width),
                redirect_stdout=self._stream is sys.stdout,
                # Warnings go above the frame; a stderr led to a file stays there.
                redirect_stderr=SafeStream(sys.stderr).isatty(),
            )
            self._live.start()
            atexit.register(self.close)  # restores the cursor even after a crash

    def _draw(self) -> None:
        self._drawn_at = self._clock()
        if self._live is not None:
            self._live.refresh()
