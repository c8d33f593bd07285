"""Files that grow by whole lines: text, and one JSON object a line.

A line that cannot be written is lost and counted; it never stops the training that tells it.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from convoy.report.run_folder import write_atomically
from convoy.report.voice import tell_on_stderr

_LONGEST_LINE = 1 << 20  # bytes; a longer one is damage, and must not fill the memory


class Lines:
    """A text file open for appending. Each line is one write, so the kernel has it at once."""

    def __init__(self, path: Path, tell: Callable[[str], None] = tell_on_stderr) -> None:
        self.path = path
        self.failures = 0
        self._tell = tell
        self._descriptor: int | None = None

    def append(self, line: str) -> bool:
        """Whether the line is in the file; the first failure is told."""
        try:
            self._write(line.encode("utf-8", "backslashreplace") + b"\n")
        except OSError as error:
            self.close()  # the next line opens the file anew, and sees where this one was cut
            self.failures += 1
            if self.failures == 1:
                self._tell(f"{self.path}: a line is lost: {error.strerror}; the run goes on")
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
                content = b"\n" + content  # so that the torn line spoils only itself
        # A disk that fills up first takes a part, and only then answers with an error.
        while content:
            content = content[os.write(self._descriptor, content) :]


def _ends_inside_a_line(descriptor: int) -> bool:
    """Whether a crash or a full disk cut the last line short."""
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def plain(value: object) -> object:
    """JSON has no number that is not finite: they become the words nan, inf and -inf."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case _:
            return value


class JsonLines:
    """One JSON object a line. Remembers the updates whose lines were lost."""

    def __init__(self, path: Path, tell: Callable[[str], None] = tell_on_stderr) -> None:
        self.path = path
        self._lost: list[int] = []  # the first and the last update without a line
        self._lines = Lines(path, tell)

    @property
    def failures(self) -> int:
        """Lines lost so far."""
        return self._lines.failures

    @property
    def gap(self) -> str | None:
        """What is missing, for people; None when nothing is."""
        if not self.failures:
            return None
        span = f" (updates {self._lost[0]} to {self._lost[-1]})" if self._lost else ""
        return f"{self.path.name} lacks {self.failures} lines{span}"

    def append(self, record: Mapping[str, object]) -> None:
        # Pure ASCII, so that file names which are no text can be written and read back.
        if not self._lines.append(json.dumps(plain(record), allow_nan=False)):
            update = record.get("update")
            if isinstance(update, int):
                self._lost = [*self._lost[:1], update]

    def keep_until(self, update: int) -> int:
        """Drop the lines of later updates, and damaged ones; say how many went."""
        self.close()
        entries = [(line, _stays(record, update)) for line, record in _entries(self.path)]
        kept = [line for line, stays in entries if stays]
        if len(kept) < len(entries):
            write_atomically(self.path, kept)
        return len(entries) - len(kept)

    def close(self) -> None:
        self._lines.close()


def _stays(record: dict[str, object] | None, update: int) -> bool:
    if record is None:
        return False
    own = record.get("update")
    return not isinstance(own, int) or own <= update


class Reading:
    """The objects of a file in order. After the pass, `damaged` counts the lines left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0

    def __iter__(self) -> Iterator[dict[str, object]]:
        self.damaged = 0
        for line, record in _entries(self.path):
            if record is not None:
                yield record
            elif line.endswith(b"\n"):  # else it is the last half line of a crash
                self.damaged += 1


def read(path: Path) -> Reading:
    """The objects of a file; one that is not there has none."""
    return Reading(path)


def _entries(path: Path) -> Iterator[tuple[bytes, dict[str, object] | None]]:
    """Each line as it stands, with its object; None for damage."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                yield _end_of_line(file), None
            elif line.strip():
                yield line, _parsed(line)


def _end_of_line(file: BinaryIO) -> bytes:
    """Pass over the rest of a line that is too long; a line break, or nothing at the file's end."""
    while rest := file.readline(_LONGEST_LINE):
        if rest.endswith(b"\n"):
            return b"\n"
    return b""


def _parsed(line: bytes) -> dict[str, object] | None:
    try:
        record = json.loads(line.decode())  # a fifth faster than from bytes
    except (ValueError, RecursionError):  # RecursionError: brackets nested by the thousand
        return None
    return record if isinstance(record, dict) else None
