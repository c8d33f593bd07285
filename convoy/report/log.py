"""The log files of a run, written event by event: `log.txt` for people, three for programs."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from convoy.events import Began, Ended, Event, Noticed, Reported, Updated, Validated
from convoy.report.format import event_line
from convoy.report.jsonl import JsonLog, TextLog
from convoy.report.stream import print_error

Now = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class LogPaths(Protocol):
    """Where the log files are: a run folder."""

    log: Path
    metrics: Path
    validation: Path
    events: Path


class Log:
    """Subscribe `write`; `close` when the run is over."""

    def __init__(
        self, paths: LogPaths, now: Now = utc_now, warn: Callable[[str], None] = print_error
    ) -> None:
        self._now = now
        self._text = TextLog(paths.log, warn)
        self._metrics = JsonLog(paths.metrics, warn)
        self._validation = JsonLog(paths.validation, warn)
        self._events = JsonLog(paths.events, warn)

    def write(self, event: Event) -> None:
        if isinstance(event, Updated):
            return  # there are as many as updates: reports have their means
        if isinstance(event, Began):
            # A lost process may have logged more than its checkpoint has; it comes again.
            self._metrics.drop_after(event.update)
            self._validation.drop_after(event.update)
        if isinstance(event, Ended):
            self._report_lost_lines(event.update)
        time = self._now().isoformat(timespec="milliseconds")
        fields = asdict(event)
        if isinstance(event, Reported):
            self._metrics.append_record(fields)
        elif isinstance(event, Validated):
            measured = {name: value for name, value in fields.items() if value is not None}
            self._validation.append_record(measured)
        else:
            name = type(event).__name__.lower()
            self._events.append_record({"event": name, "time": time, **fields})
        self._text.append(f"{time}  {event_line(event)}")

    def close(self) -> None:
        for file in (self._text, self._metrics, self._validation, self._events):
            file.close()

    def _report_lost_lines(self, update: int) -> None:
        """At the end, when there may be room again."""
        for file in (self._metrics, self._validation, self._events):
            if file.gap is not None:
                self.write(Noticed("lines-lost", file.gap, update))
