"""A bar on a terminal for work of a known length."""

import time
from typing import IO, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from convoy.report.throughput import Clock
from convoy.report.voice import Voice
from convoy.report.wording import done_words

_SECONDS_BETWEEN_FRAMES = 0.1


class LiveBar:
    """Appears with the first call, and draws without a thread of its own."""

    def __init__(self, stream: TextIO, what: str, unit: str, clock: Clock = time.monotonic) -> None:
        self._what, self._unit = what, unit
        self._clock = clock
        self._drawn_at = clock() - _SECONDS_BETWEEN_FRAMES
        console = Console(file=cast(IO[str], Voice(stream)), force_terminal=True)
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
        if done == 0:  # another piece of work
            self._progress.reset(self._task)
        self._progress.update(
            self._task, completed=done, total=total, count=done_words(done, total, self._unit)
        )
        self._progress.start()  # again is nothing
        self._progress.refresh()
        if done >= total:  # the next bar may be another one
            self._progress.stop()

    def close(self) -> None:
        """Leave the last frame in place and give the cursor back."""
        self._progress.stop()
