"""What a person sees while a run works: a live display on a terminal, plain lines elsewhere.

Nothing here can stop a training: when nobody reads any more, the display falls silent.
"""

import os
import time
from typing import Protocol, TextIO

from convoy.errors import ConfigError
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
from convoy.report.throughput import Clock
from convoy.report.voice import Voice
from convoy.report.wording import event_line, standing_line

KINDS = ("auto", "rich", "plain", "none")


class Progress(Protocol):
    """Subscribe `write`; `close` at the end, whatever the end is."""

    def write(self, event: Event) -> None: ...

    def close(self) -> None: ...


class NoProgress:
    """Shows nothing."""

    def write(self, event: Event) -> None:
        """Nobody wants to know."""

    def close(self) -> None:
        """Nothing is open."""


class PlainProgress:
    """Lines that stay readable in a batch log: at most one state each `interval` seconds."""

    # Where reports are rare, the bare count still shows that the run lives.
    _INTERVALS_WITHOUT_REPORT = 4

    def __init__(
        self, stream: TextIO | None, interval: float = 5.0, clock: Clock = time.monotonic
    ) -> None:
        self._voice = Voice(stream)
        self._interval = interval
        self._clock = clock
        self._standing = Standing(clock)
        self._told_at = clock() - interval
        self._told = ""

    def write(self, event: Event) -> None:
        self._standing.take(event)
        silence = self._clock() - self._told_at
        match event:
            case Reported():
                if silence >= self._interval:
                    self._tell_standing()
            case Updated():
                if silence >= self._interval * self._INTERVALS_WITHOUT_REPORT:
                    self._tell_standing()
            case Ended():
                self._tell_standing()
                self._voice.say(event_line(event))
            case Began() | Validated() | Saved() | Averaged() | Noticed():
                self._voice.say(event_line(event))

    def close(self) -> None:
        self._voice.close()

    def _tell_standing(self) -> None:
        line = standing_line(self._standing)
        if line != self._told:
            self._voice.say(line)
        self._told, self._told_at = line, self._clock()


def make_progress(kind: str, stream: TextIO | None, interval: float = 5.0) -> Progress:
    """The display for `--progress`; `auto` looks at the stream."""
    if kind not in KINDS:
        raise ConfigError(f"unknown --progress {kind!r}; choose one of {', '.join(KINDS)}")
    if kind == "none" or stream is None:
        return NoProgress()
    if kind == "rich" or (kind == "auto" and draws(stream)):
        # Imported only here: rich takes longer to load than `--help` may take to answer.
        from convoy.report.live import LiveProgress

        return LiveProgress(stream)
    return PlainProgress(stream, interval)


def draws(stream: TextIO) -> bool:
    """A terminal that can move its cursor."""
    return Voice(stream).isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
