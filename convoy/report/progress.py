"""Progress of a run or another task: plain lines or a live display.

The live display (rich) is in live.py and is loaded only for a terminal.
"""

import os
import time
from typing import TYPE_CHECKING, TextIO

from convoy.events import Ended, Event, Reported, Updated
from convoy.report.format import Clock, ProgressState, event_line, format_count, progress_line
from convoy.report.stream import SafeStream

if TYPE_CHECKING:
    from convoy.report.live import LiveBar, LiveProgress


class PlainProgress:
    """Plain lines for batch logs: at most one progress line every `interval` seconds.

    Subscribe `write`; call `close` at the end, also after errors.
    """

    # If reports are rare, the update count still shows that the run is alive.
    _INTERVALS_WITHOUT_REPORT = 4

    def __init__(
        self, stream: TextIO | None, interval: float = 5.0, clock: Clock = time.monotonic
    ) -> None:
        self._stream = SafeStream(stream)
        self._interval = interval
        self._clock = clock
        self._state = ProgressState(clock)
        self._printed_at = clock() - interval
        self._printed = ""

    def write(self, event: Event) -> None:
        self._state.handle_event(event)
        if isinstance(event, Reported | Updated):
            intervals = 1 if isinstance(event, Reported) else self._INTERVALS_WITHOUT_REPORT
            if self._clock() - self._printed_at >= self._interval * intervals:
                self._print_progress()
            return
        if isinstance(event, Ended):
            self._print_progress()
        self._stream.print(event_line(event))

    def close(self) -> None:
        self._stream.close()

    def _print_progress(self) -> None:
        line = progress_line(self._state)
        if line != self._printed:
            self._stream.print(line)
        self._printed, self._printed_at = line, self._clock()


def make_progress(
    kind: str, stream: TextIO | None, interval: float = 5.0
) -> "PlainProgress | LiveProgress":
    """Create the display for `--progress`; `auto` depends on the stream."""
    if kind == "none" or stream is None:
        return PlainProgress(None)
    if kind == "rich" or (kind == "auto" and is_live_terminal(stream)):
        # Imported only here: loading rich takes longer than `--help` may take.
        from convoy.report.live import LiveProgress

        return LiveProgress(stream)
    return PlainProgress(stream, interval)


def is_live_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    movable = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return movable and SafeStream(stream).isatty()


class PlainBar:
    """Progress as plain lines for batch logs.

    Call it with the done and the total count, from one thread; close it at the end.
    """

    def __init__(self, stream: TextIO, description: str, unit: str) -> None:
        self._stream = SafeStream(stream)
        self._description, self._unit = description, unit
        self._printed_tenths = 0

    def __call__(self, done: int, total: int) -> None:
        if done == 0:  # another task
            self._printed_tenths = 0
        tenths = 10 * done // total if total else 0
        if tenths > self._printed_tenths:
            self._printed_tenths = tenths
            self._stream.print(f"{self._description}: {format_count(done, total, self._unit)}")

    def close(self) -> None:
        """Do nothing: every line is printed already."""


def make_bar(stream: TextIO, description: str, unit: str) -> "PlainBar | LiveBar":
    if is_live_terminal(stream):
        from convoy.report.live import LiveBar

        return LiveBar(stream, description, unit)
    return PlainBar(stream, description, unit)
