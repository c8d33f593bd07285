"""The files of a run, written event by event: `log.txt` for people, three more for programs."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime

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
from convoy.report.lines import JsonLines, Lines
from convoy.report.run_folder import RunFolder
from convoy.report.voice import tell_on_stderr
from convoy.report.wording import event_line

Now = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Log:
    """Subscribe `write`; `close` when the run is over."""

    def __init__(
        self, folder: RunFolder, now: Now = utc_now, tell: Callable[[str], None] = tell_on_stderr
    ) -> None:
        self._now = now
        self._text = Lines(folder.log, tell)
        self._metrics = JsonLines(folder.metrics, tell)
        self._validation = JsonLines(folder.validation, tell)
        self._events = JsonLines(folder.events, tell)

    def write(self, event: Event) -> None:
        match event:
            case Updated():
                return  # as many as there are updates: reports hold their means
            case Began():
                # What a lost process told beyond its checkpoint will be told again.
                self._metrics.keep_until(event.update)
                self._validation.keep_until(event.update)
                self._record(event)
            case Reported():
                self._metrics.append(asdict(event))
            case Validated():
                told = {name: one for name, one in asdict(event).items() if one is not None}
                self._validation.append(told)
            case Saved() | Averaged() | Noticed():
                self._record(event)
            case Ended():
                self._confess(event.update)
                self._record(event)
        self._text.append(f"{self._stamp()}  {event_line(event)}")

    def close(self) -> None:
        for file in (self._text, self._metrics, self._validation, self._events):
            file.close()

    def _record(self, event: Began | Saved | Averaged | Noticed | Ended) -> None:
        name = type(event).__name__.lower()
        self._events.append({"event": name, "time": self._stamp(), **asdict(event)})

    def _confess(self, update: int) -> None:
        """Say which lines are missing, now that there may be room again."""
        for file in (self._metrics, self._validation, self._events):
            if file.gap is not None:
                self.write(Noticed("lines-lost", file.gap, update))

    def _stamp(self) -> str:
        return self._now().isoformat(timespec="milliseconds")
