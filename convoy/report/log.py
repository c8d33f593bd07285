"""The log files of a run, written event by event: `log.txt` for people, three for programs."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from convoy.errors import StorageError
from convoy.events import Began, Ended, Event, Noticed, Reported, Updated, Validated
from convoy.files import write_atomically
from convoy.report.format import event_line
from convoy.report.stream import print_error

_MAX_LINE_BYTES = 1 << 20  # a longer one is damage, and must not fill the memory


class TextLog:
    """A text file open for appending. Each line is one write, so the kernel has it at once."""

    def __init__(self, path: Path, warn: Callable[[str], None] = print_error) -> None:
        self.path = path
        self.failures = 0
        self._warn = warn
        self._descriptor: int | None = None

    def append(self, line: str) -> bool:
        """Whether the line is in the file; the first failure is reported."""
        try:
            self._write(line.encode("utf-8", "backslashreplace") + b"\n")
        except OSError as error:
            self.close()  # the next line opens the file anew, and sees where this one was cut
            self.failures += 1
            if self.failures == 1:
                self._warn(f"{self.path}: a line is lost: {error.strerror}; the run goes on")
            return False
        return True

    def close(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _write(self, content: bytes) -> None:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o666)
            if _ends_inside_a_line(self._descriptor):
                content = b"\n" + content  # so that the torn line damages only itself
        # A disk that fills up first takes a part, and only then returns an error.
        while content:
            content = content[os.write(self._descriptor, content) :]


def _ends_inside_a_line(descriptor: int) -> bool:
    """Whether a crash or a full disk cut the last line short."""
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def json_safe(value: object) -> object:
    """JSON has only finite numbers: others become the strings nan, inf and -inf."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {str(key): json_safe(inner) for key, inner in value.items()}
        case list() | tuple():
            return [json_safe(inner) for inner in value]
        case _:
            return value


class JsonLog(TextLog):
    """One JSON object per line. Remembers the updates whose lines were lost."""

    def __init__(self, path: Path, warn: Callable[[str], None] = print_error) -> None:
        super().__init__(path, warn)
        self._lost: list[int] = []  # the first and the last update without a line

    @property
    def gap(self) -> str | None:
        """What is missing, for people; None when nothing is."""
        if not self.failures:
            return None
        span = f" (updates {self._lost[0]} to {self._lost[-1]})" if self._lost else ""
        return f"{self.path.name} lacks {self.failures} lines{span}"

    def append_record(self, record: Mapping[str, object]) -> None:
        # Pure ASCII, so that file names which are not text can be written and read back.
        if not self.append(json.dumps(json_safe(record), allow_nan=False)):
            update = record.get("update")
            if isinstance(update, int):
                self._lost = [*self._lost[:1], update]

    def drop_after(self, update: int) -> int:
        """Drop the lines of later updates, and damaged ones; returns how many."""
        self.close()
        lines = list(_parsed_lines(self.path))
        kept = [line for line, record in lines if _is_up_to(record, update)]
        if len(kept) < len(lines):
            write_atomically(self.path, kept)
        return len(lines) - len(kept)


def _is_up_to(record: dict[str, object] | None, update: int) -> bool:
    if record is None:
        return False
    number = record.get("update")
    return not isinstance(number, int) or number <= update


def read_jsonl(path: Path) -> Iterator[dict[str, object]]:
    """The objects of a file in order, without damaged lines; a missing file has none."""
    return (record for _, record in _parsed_lines(path) if record is not None)


def _parsed_lines(path: Path) -> Iterator[tuple[bytes, dict[str, object] | None]]:
    """Each line with its object; None for damage."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(_MAX_LINE_BYTES):
            if len(line) == _MAX_LINE_BYTES and not line.endswith(b"\n"):
                while (rest := file.readline(_MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass  # skips the rest of a line that is too long
                yield line, None
            elif line.strip():
                yield line, _parse(line)


def _parse(line: bytes) -> dict[str, object] | None:
    try:
        record = json.loads(line.decode())  # a fifth faster than from bytes
    except (ValueError, RecursionError):  # RecursionError: brackets nested by the thousand
        return None
    return record if isinstance(record, dict) else None


UTC_NOW = partial(datetime.now, UTC)


class LogPaths(Protocol):
    """Where the log files are: a run folder."""

    log: Path
    metrics: Path
    validation: Path
    events: Path


class Log:
    """Subscribe `write`; `close` when the run is over."""

    def __init__(
        self,
        paths: LogPaths,
        now: Callable[[], datetime] = UTC_NOW,
        warn: Callable[[str], None] = print_error,
    ) -> None:
        self._now = now
        self._warn = warn
        self._text = TextLog(paths.log, warn)
        self._metrics = JsonLog(paths.metrics, warn)
        self._validation = JsonLog(paths.validation, warn)
        self._events = JsonLog(paths.events, warn)

    def write(self, event: Event) -> None:
        if isinstance(event, Updated):
            return  # there are as many as updates: reports have their means
        if isinstance(event, Began):
            # A lost process may have logged more than its checkpoint has; it comes again.
            for file in (self._metrics, self._validation):
                try:
                    file.drop_after(event.update)
                except (OSError, StorageError) as error:  # the other files are not affected
                    self._warn(f"{file.path}: lines of later updates cannot be dropped: {error}")
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
