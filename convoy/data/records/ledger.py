"""The bad records of a run: one file that all of its processes add to, and a limit.

A line a record, so that many processes can write at once, and a run that goes on knows them again.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

from convoy.data.records.record import BadRecordError
from convoy.errors import DataError, StorageError

NAME = "bad_records.jsonl"  # in the folder of a run

_LONGEST_REASON = 500  # characters: a line stays within what a system writes in one piece


@dataclass(frozen=True)
class BadRecord:
    """One that was passed over."""

    split: str
    file: str
    offset: int | None
    record: int | None
    reason: str

    @classmethod
    def of(cls, error: BadRecordError, split: str) -> "BadRecord":
        spot = error.spot
        return cls(split, spot.file, spot.offset, spot.number, error.reason[:_LONGEST_REASON])

    @property
    def place(self) -> tuple[str, str, int | None, int | None]:
        return self.split, self.file, self.offset, self.record

    def __str__(self) -> str:
        at = "" if self.offset is None else f": byte {self.offset}"
        number = "" if self.record is None else f", record {self.record}"
        return f"{self.file}{at}{number}: {self.reason}"


class Ledger:
    """Counts bad records, each once, and ends the run when they are too many."""

    def __init__(self, limit: int, path: Path | None = None) -> None:
        """Without a path only this process knows them."""
        self.limit = limit
        self.path = path
        self._known: dict[tuple[str, str, int | None, int | None], BadRecord] = {}
        self._read_bytes = 0
        self._lock = Lock()
        self._catch_up()
        self._told = len(self._known)

    @property
    def records(self) -> list[BadRecord]:
        """Of all processes, as they were found."""
        with self._lock:
            self._catch_up()
            return list(self._known.values())

    def add(self, bad: BadRecord) -> None:
        """Raises DataError with the whole list when this one is too many."""
        with self._lock:
            self._catch_up()
            if bad.place not in self._known and len(self._known) <= self.limit:
                self._write(bad)
                self._known[bad.place] = bad
            if len(self._known) > self.limit:
                raise DataError(self._too_many())

    def untold(self) -> list[BadRecord]:
        """Those that have come since the last call."""
        records = self.records
        new, self._told = records[self._told :], len(records)
        return new

    def _too_many(self) -> str:
        records = "\n".join(f"  {one}" for one in self._known.values())
        count = len(self._known)
        return (
            f"{count} bad record{'s' * (count != 1)}, --max-bad-records allows {self.limit}:\n"
            f"{records}"
        )

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
        """Take over what other processes have written since; half a line waits for its end."""
        if self.path is None or not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]
        self._read_bytes += len(whole) + bool(whole)
        for line in whole.splitlines():
            bad = _understood(line)
            if bad is not None:
                self._known.setdefault(bad.place, bad)


def _understood(line: bytes) -> BadRecord | None:
    """None for what a crash has left of a line."""
    try:
        return BadRecord(**json.loads(line))
    except (ValueError, TypeError):
        return None
