"""Records of a conversion: the journal while it is unfinished, the manifest when it is finished.

A shard truncated exactly between two records looks complete; only the manifest shows the loss.
The first line of the journal identifies the conversion and every further line is a finished part,
so that the same command continues it. The manifest replaces the journal when all are written.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from convoy.data.records.index import MAX_CLASSES, Index
from convoy.data.source import Split
from convoy.errors import BusyError, ConfigError, DataError
from convoy.files import sync_folder
from convoy.text import pluralize, quote_shortened

MANIFEST_NAME = "convoy-manifest.json"
JOURNAL_NAME = ".convoy-conversion.jsonl"

_MAX_BYTES = 2**24  # of the manifest; 1,152 shards take 200,000


@dataclass(frozen=True)
class SkippedRecord:
    """A bad record of the source: its index there and the error message."""

    number: int
    says: str


@dataclass(frozen=True)
class WrittenPart:
    """A shard or class folder as it was written: one entry of the manifest."""

    name: str
    bytes: int
    sha256: str
    records: int
    left_out: tuple[SkippedRecord, ...] = ()

    @classmethod
    def from_json(cls, table: Any) -> "WrittenPart":
        """Parse one entry; raise TypeError or KeyError if it is invalid."""
        left_out = tuple(SkippedRecord(**entry) for entry in table.get("left_out", ()))
        part = cls(table["name"], table["bytes"], table["sha256"], table["records"], left_out)
        values = part.name, part.sha256, part.bytes, part.records
        if [type(value) for value in values] != [str, str, int, int]:
            raise TypeError("names and checksums are strings, sizes are integers")
        return part


def size_and_sha256(path: Path) -> tuple[int, str] | None:
    """Return size and SHA-256 of a file, or of all files in a folder; None if it is missing."""
    try:
        if not path.is_dir():
            return _file_size_and_sha256(path)
        total, digest = 0, hashlib.sha256()
        for name in sorted(os.fsencode(entry.name) for entry in path.iterdir()):
            size, sha256 = _file_size_and_sha256(path / os.fsdecode(name))
            total += size
            digest.update(b"%s\0%d\0%s\n" % (name, size, sha256.encode()))
        return total, digest.hexdigest()
    except FileNotFoundError:
        return None


def _file_size_and_sha256(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return os.fstat(file.fileno()).st_size, digest.hexdigest()


def read_json(path: Path) -> Any:
    """Read JSON; raise OSError, or ValueError or RecursionError if it is not valid JSON."""
    with path.open("rb") as file:
        return json.loads(file.read(_MAX_BYTES))


def read_parts(folder: Path, split: Split) -> Mapping[str, WrittenPart] | None:
    """Return the parts of a split by name; None if no manifest lists them."""
    with _open_manifest(folder) as table:
        entries = table.get("splits", {}).get(split)
        if entries is None:
            return None
        parts = [WrittenPart.from_json(entry) for entry in entries["shards"]]
        return {part.name: part for part in parts}


def read_class_names(folder: Path) -> tuple[str, ...]:
    """Return the names of all classes, even those without a record; empty without a manifest."""
    with _open_manifest(folder) as table:
        names = table.get("class_names", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("class names are strings")
        if len(names) > MAX_CLASSES:
            raise ValueError("too many class names")
        return tuple(names)


@contextmanager
def _open_manifest(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Read the manifest, empty if there is none; every error in the block becomes a DataError."""
    path = folder / MANIFEST_NAME
    try:
        table = read_json(path) if path.is_file() else {"splits": {}}
        if not isinstance(table["splits"], dict):
            raise TypeError("splits is a table")
        yield table
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: not a manifest written by `convoy data convert`; remove it to skip its checks"
        ) from error


def check_finished(folder: Path) -> None:
    """Raise DataError for an unfinished conversion, which looks like a smaller dataset."""
    if (folder / JOURNAL_NAME).exists() and not (folder / MANIFEST_NAME).exists():
        raise DataError(
            f"{folder}: `convoy data convert` has not finished here; run the same command again "
            "to continue"
        )


def check_shard_names(folder: Path, parts: Mapping[str, WrittenPart], names: list[str]) -> None:
    """Raise DataError unless the shards on disk are exactly those that were written."""
    missing = sorted(parts.keys() - set(names))
    extra = sorted(set(names) - parts.keys())
    if missing or extra:
        problems = [f"lacks {missing[0]}{_and_more(missing)}"] if missing else []
        problems += [f"has {extra[0]}{_and_more(extra)}, which is not listed"] if extra else []
        raise DataError(
            f"{folder}: {MANIFEST_NAME} lists {len(parts)} shards, but the folder "
            f"{' and '.join(problems)}; convert the data again"
        )


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def check_record_counts(folder: Path, parts: Mapping[str, WrittenPart], index: Index) -> None:
    """Raise DataError if a shard without a visible fault does not contain what was written.

    A shard with a fault is left to the policy for bad records, which counts it.
    """
    faulty = {fault.file for fault in index.faults}
    for file in index.files:
        part = parts[file.name]
        if file.name not in faulty and (part.bytes, part.records) != (file.bytes, file.records):
            raise DataError(
                f"{folder / file.name}: {pluralize(file.records, 'record')} in {file.bytes} bytes, "
                f"but {MANIFEST_NAME} lists {part.records} in {part.bytes}; convert the data "
                "again, or copy this shard again"
            )


_DIFFERENCES = {
    "source": "from different data, or the data has changed",
    "form": "into a different format",
    "shuffle": "in a different order",
    "splits": "with different splits or shards",
}


@dataclass(frozen=True)
class Journal:
    """The open journal of one conversion. Created by `open_journal`."""

    file: BinaryIO
    done: dict[str, WrittenPart]
    lock: Lock = field(default_factory=Lock)

    def add(self, part: WrittenPart) -> None:
        with self.lock:
            _append_lines(self.file, asdict(part))
            self.done[part.name] = part


@contextmanager
def open_journal(target: Path, identity: Mapping[str, Any]) -> Iterator[Journal]:
    """Open the journal of a new or unfinished conversion; refuse a target with other content."""
    _check_target(target)
    finished, parts = (
        (None, []) if (target / JOURNAL_NAME).exists() else _read_manifest(target / MANIFEST_NAME)
    )
    _check_same_conversion(target, finished or identity, identity)
    target.mkdir(parents=True, exist_ok=True)
    with (target / JOURNAL_NAME).open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"{target}: another process is converting into this folder") from None
        known, done = _read_journal(file)
        _check_same_conversion(target, known or identity, identity)
        if known is None:
            done = parts
            _append_lines(file, identity, *(asdict(part) for part in done))
            sync_folder(target)
        yield Journal(file, {part.name: part for part in done})


def _check_target(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: not a folder; choose a new folder to convert into")
    names = {path.name for path in target.iterdir()} if target.exists() else set()
    other_names = sorted(names - {JOURNAL_NAME})
    started = JOURNAL_NAME in names and (target / JOURNAL_NAME).stat().st_size > 0
    if other_names and not started and MANIFEST_NAME not in names:
        raise ConfigError(
            f"{target}: not empty, it contains {quote_shortened(other_names[0])}; choose a new "
            "folder to convert into"
        )


def _read_journal(file: BinaryIO) -> tuple[Any, list[WrittenPart]]:
    """Return identity and finished parts of a conversion; drop an incomplete last line."""
    known, done, end = None, [], 0
    file.seek(0)
    for line in takewhile(lambda line: line.endswith(b"\n"), file):
        try:
            table = json.loads(line)
            if known is not None:
                done.append(WrittenPart.from_json(table))
        except (ValueError, KeyError, TypeError, AttributeError):
            break
        known = table if known is None else known
        end += len(line)
    file.truncate(end)
    return known, done


def _read_manifest(path: Path) -> tuple[Any, list[WrittenPart]]:
    """Return identity and parts of a finished conversion, so that damaged parts are rewritten."""
    if not path.is_file():
        return None, []
    try:
        table = read_json(path)
        shards = [shard for split in table["splits"].values() for shard in split["shards"]]
        return table["conversion"], [WrittenPart.from_json(shard) for shard in shards]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(
            f"{path}: not a manifest written by convoy; choose a new folder to convert into"
        ) from None


def _check_same_conversion(target: Path, known: Any, identity: Mapping[str, Any]) -> None:
    table = known if isinstance(known, dict) else {}
    differ = [key for key in _DIFFERENCES if table.get(key) != identity[key]]
    if differ:
        raise ConfigError(
            f"{target}: contains a different conversion, "
            f"{' and '.join(_DIFFERENCES[key] for key in differ)}; "
            "run its command again to continue it, or choose a new folder"
        )


def _append_lines(file: BinaryIO, *tables: Mapping[str, Any]) -> None:
    file.writelines(json.dumps(table).encode() + b"\n" for table in tables)
    file.flush()
    os.fsync(file.fileno())
