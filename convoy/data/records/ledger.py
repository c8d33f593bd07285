"""Where a bad record is, and the bad ones of a run: a file that all processes add to, and a limit.

One line per record, so that many processes can write at once and a resumed run knows them.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

from convoy.errors import DataError, StorageError
from convoy.text import counted


@dataclass(frozen=True)
class RecordLocation:
    """Where a record is: what a user needs to inspect it with other tools."""

    file: str
    offset: int | None = None  # in bytes; None where the file is the record
    number: int | None = None  # within the file, from 0

    def __str__(self) -> str:
        offset = "" if self.offset is None else f": byte {self.offset}"
        number = "" if self.number is None else f", record {self.number}"
        return f"{self.file}{offset}{number}"


class BadRecordError(DataError):
    """One record that cannot be used, whatever the reason."""

    def __init__(self, location: RecordLocation, reason: str) -> None:
        super().__init__(f"{location}: {reason}")
        self.location = location
        self.reason = reason


NAME = "bad_records.jsonl"  # in the folder of a run

_LONGEST_REASON = 500  # characters: a line stays within what a system writes in one piece


@dataclass(frozen=True)
class BadRecord:
    """One that was skipped."""

    split: str
    file: str
    offset: int | None
    record: int | None
    reason: str

    @classmethod
    def of(cls, error: BadRecordError, split: str) -> "BadRecord":
        at = error.location
        return cls(split, at.file, at.offset, at.number, error.reason[:_LONGEST_REASON])

    @property
    def key(self) -> "RecordKey":
        return self.split, RecordLocation(self.file, self.offset, self.record)

    def __str__(self) -> str:
        return f"{self.key[1]}: {self.reason}"


RecordKey = tuple[str, RecordLocation]  # split and location


class Ledger:
    """Counts bad records, each once, and ends the run when they are too many."""

    def __init__(self, limit: int, path: Path | None = None) -> None:
        """Without a path the list is in memory only."""
        self.limit = limit
        self.path = path
        self._known: dict[RecordKey, BadRecord] = {}
        self._read_bytes = 0
        self._lock = Lock()
        self._catch_up()
        self._reported = len(self._known)

    @property
    def records(self) -> list[BadRecord]:
        """Of all processes, in the order in which they were found."""
        with self._lock:
            self._catch_up()
            return list(self._known.values())

    def add(self, bad: BadRecord) -> None:
        """Raises DataError with the whole list when this one is too many."""
        with self._lock:
            self._catch_up()
            if bad.key not in self._known and len(self._known) <= self.limit:
                self._write(bad)
                self._known[bad.key] = bad
            if len(self._known) > self.limit:
                records = "\n".join(f"  {bad}" for bad in self._known.values())
                count = counted(len(self._known), "bad record")
                raise DataError(f"{count}, --max-bad-records allows {self.limit}:\n{records}")

    def new_records(self) -> list[BadRecord]:
        records = self.records
        new, self._reported = records[self._reported :], len(records)
        return new

    def _write(self, bad: BadRecord) -> None:
        if self.path is None:
            return
        line = json.dumps(asdict(bad)).encode() + b"\n"
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}") from error

    def _catch_up(self) -> None:
        """Read what other processes have written since; half a line waits for its end."""
        if self.path is None or not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]
        self._read_bytes += len(whole) + bool(whole)
        for line in whole.splitlines():
            with suppress(ValueError, TypeError):  # a line that a crash has cut
                bad = BadRecord(**json.loads(line))
                self._known.setdefault(bad.key, bad)
