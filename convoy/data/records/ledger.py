"""Locations of bad records, and the ledger of a run: a file shared by all processes, with a limit.

One line per record, so that many processes can append to the file and a resumed run reads it.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock

from convoy.errors import DataError, StorageError
from convoy.text import pluralize


@dataclass(frozen=True)
class RecordLocation:
    """The location of a record, as needed to inspect it with other tools."""

    file: str
    offset: int | None = None  # in bytes; None if the file is the record
    number: int | None = None  # within the file, from 0

    def __str__(self) -> str:
        offset = "" if self.offset is None else f": byte {self.offset}"
        number = "" if self.number is None else f", record {self.number}"
        return f"{self.file}{offset}{number}"


class BadRecordError(DataError):
    """A record that cannot be used, for any reason."""

    def __init__(self, location: RecordLocation, reason: str) -> None:
        super().__init__(f"{location}: {reason}")
        self.location = location
        self.reason = reason


LEDGER_NAME = "bad_records.jsonl"  # in the run folder

_MAX_REASON_CHARS = 500  # keeps a line short enough for an atomic write


@dataclass(frozen=True)
class BadRecord:
    """A skipped record. Records at the same location are equal, whatever the reasons."""

    split: str
    file: str
    offset: int | None
    record: int | None
    reason: str = field(compare=False)

    @classmethod
    def from_error(cls, error: BadRecordError, split: str) -> "BadRecord":
        location = error.location
        reason = error.reason[:_MAX_REASON_CHARS]
        return cls(split, location.file, location.offset, location.number, reason)

    def __str__(self) -> str:
        return f"{RecordLocation(self.file, self.offset, self.record)}: {self.reason}"


class Ledger:
    """Count each bad record once, and end the run when there are too many."""

    def __init__(self, limit: int, path: Path | None = None) -> None:
        """Without a path, keep the list in memory only."""
        self.limit = limit
        self.path = path
        self._known: dict[BadRecord, None] = {}  # in order
        self._read_bytes = 0
        self._lock = Lock()
        self._read_new_lines()
        self._reported = len(self._known)

    @property
    def records(self) -> list[BadRecord]:
        """The bad records of all processes, in the order they were found."""
        with self._lock:
            self._read_new_lines()
            return list(self._known)

    def add(self, bad: BadRecord) -> None:
        """Add a record; raise DataError with the full list if that exceeds the limit."""
        with self._lock:
            self._read_new_lines()
            if bad not in self._known and len(self._known) <= self.limit:
                self._write(bad)
                self._known[bad] = None
            if len(self._known) > self.limit:
                records = "\n".join(f"  {bad}" for bad in self._known)
                count = pluralize(len(self._known), "bad record")
                raise DataError(f"{count}, --max-bad-records allows {self.limit}:\n{records}")

    def new_records(self) -> list[BadRecord]:
        """Return the records added since the last call."""
        records = self.records
        new, self._reported = records[self._reported :], len(records)
        return new

    def _write(self, bad: BadRecord) -> None:
        if self.path is None:
            return
        line = json.dumps(asdict(bad)).encode() + b"\n"
        try:
            with self.path.open("ab", buffering=0) as file:
                file.write(line)
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}") from error

    def _read_new_lines(self) -> None:
        """Read lines written by other processes; leave an incomplete last line for later."""
        if self.path is None or not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            lines = file.read().rpartition(b"\n")[0]
        self._read_bytes += len(lines) + bool(lines)
        for line in lines.splitlines():
            with suppress(ValueError, TypeError):  # a line truncated by a crash
                self._known.setdefault(BadRecord(**json.loads(line)))
