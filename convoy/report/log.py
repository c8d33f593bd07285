"""The log files of a run: `log.txt` to read, and three JSON Lines files for programs."""

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
from convoy.text import pluralize

_MAX_LINE_BYTES = 1 << 20  # a longer line is damaged and must not fill the memory


class TextLog:
    """A text file opened for appending. Each line is one write, so no buffer can be lost."""

    def __init__(self, path: Path, warn: Callable[[str], None] = print_error) -> None:
        self.path = path
        self.failures = 0
        self._warn = warn
        self._descriptor: int | None = None

    def append(self, line: str) -> bool:
        """Append a line; return whether it succeeded. The first failure is reported."""
        try:
            self._write(line.encode("utf-8", "backslashreplace") + b"\n")
        except OSError as error:
            self.close()  # the next line reopens the file and checks for a truncated line
            self.failures += 1
            if self.failures == 1:
                self._warn(f"{self.path}: cannot write a line: {error.strerror}; the run continues")
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
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                content = b"\n" + content  # a line truncated by a crash must not damage the next
        # A disk that fills up first writes a part, and returns an error only then.
        while content:
            content = content[os.write(self._descriptor, content) :]


def json_safe(value: object) -> object:
    """Replace non-finite numbers, which JSON lacks, by the strings nan, inf and -inf."""
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
    """One JSON object per line. Remembers the updates of lines that could not be written."""

    def __init__(self, path: Path, warn: Callable[[str], None] = print_error) -> None:
        super().__init__(path, warn)
        self._lost_updates: list[int] = []  # the first and the last update without a line

    @property
    def missing_lines(self) -> str | None:
        """Describe the missing lines; None if there are none."""
        if not self.failures:
            return None
        lost = self._lost_updates
        span = f" (updates {lost[0]} to {lost[-1]})" if lost else ""
        return f"{self.path.name} is missing {pluralize(self.failures, 'line')}{span}"

    def append_record(self, record: Mapping[str, object]) -> None:
        # ASCII only, so that undecodable file names can be written and read back.
        if not self.append(json.dumps(json_safe(record), allow_nan=False)):
            update = record.get("update")
            if isinstance(update, int):
                self._lost_updates = [*self._lost_updates[:1], update]

    def drop_after(self, update: int) -> int:
        """Drop damaged lines and those of later updates; return how many."""
        self.close()
        lines = list(_parsed_lines(self.path))
        remaining = [line for line, record in lines if _is_not_after(record, update)]
        if len(remaining) < len(lines):
            write_atomically(self.path, remaining)
        return len(lines) - len(remaining)


def _is_not_after(record: dict[str, object] | None, update: int) -> bool:
    if record is None:
        return False
    number = record.get("update")
    return not isinstance(number, int) or number <= update


def read_jsonl(path: Path) -> Iterator[dict[str, object]]:
    """Yield the objects of a file, skipping damaged lines; a missing file has none."""
    return (record for _, record in _parsed_lines(path) if record is not None)


def _parsed_lines(path: Path) -> Iterator[tuple[bytes, dict[str, object] | None]]:
    """Yield each line with its object, or None if it is damaged."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(_MAX_LINE_BYTES):
            if len(line) == _MAX_LINE_BYTES and not line.endswith(b"\n"):
                while (rest := file.readline(_MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass  # skip the rest of an overlong line
                yield line, None
            elif line.strip():
                yield line, _parse(line)


def _parse(line: bytes) -> dict[str, object] | None:
    try:
        record = json.loads(line.decode())  # 20 % faster than parsing bytes
    except (ValueError, RecursionError):  # RecursionError: deeply nested brackets
        return None
    return record if isinstance(record, dict) else None


UTC_NOW = partial(datetime.now, UTC)


class LogPaths(Protocol):
    """Paths of the log files; a run folder has them."""

    log: Path
    metrics: Path
    validation: Path
    events: Path


class Log:
    """Observer that writes the log files: subscribe `write`, call `close` at the end."""

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
            return  # one per update; reports contain the means
        if isinstance(event, Began):
            # A lost process may have logged updates after its checkpoint; they are repeated.
            for file in (self._metrics, self._validation):
                try:
                    file.drop_after(event.update)
                except (OSError, StorageError) as error:  # the other files are not affected
                    self._warn(f"{file.path}: cannot drop lines of later updates: {error}")
        if isinstance(event, Ended):
            for file in (self._metrics, self._validation, self._events):
                if file.missing_lines is not None:  # at the end, when space may be free again
                    self.write(Noticed("lines-lost", file.missing_lines, event.update))
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
