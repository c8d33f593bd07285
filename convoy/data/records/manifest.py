"""What a conversion wrote: the journal of an unfinished one, the manifest of a finished one.

A shard cut exactly between two records looks complete by itself; only such a list shows the loss.
The first line of the journal identifies the conversion, every other one is a finished part, so
that the same command continues it. When all parts are written the manifest replaces the journal.
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
from typing import Any

from convoy.data.records.index import MOST_CLASSES, Index
from convoy.data.source import Split
from convoy.errors import BusyError, ConfigError, DataError
from convoy.files import sync_folder
from convoy.text import shown

NAME = "convoy-manifest.json"
JOURNAL = ".convoy-conversion.jsonl"  # in the place of the manifest until everything is written

_MOST_BYTES = 2**24  # of the manifest itself; 1,152 shards take 200,000


@dataclass(frozen=True)
class LeftOut:
    """A bad record of the source: its number there, and the error message."""

    number: int
    says: str


@dataclass(frozen=True)
class WrittenPart:
    """A shard or a class folder as it was written: one entry of the manifest."""

    name: str
    bytes: int
    sha256: str
    records: int
    left_out: tuple[LeftOut, ...] = ()

    @classmethod
    def from_json(cls, table: Any) -> "WrittenPart":
        """TypeError or KeyError for a table that is no entry."""
        left_out = tuple(LeftOut(**entry) for entry in table.get("left_out", ()))
        part = cls(table["name"], table["bytes"], table["sha256"], table["records"], left_out)
        if type(part.bytes) is not int or type(part.records) is not int:
            raise TypeError("sizes are integers")
        if not isinstance(part.name, str) or not isinstance(part.sha256, str):
            raise TypeError("names and checksums are strings")
        return part

    def matches(self, path: Path) -> bool:
        """Whether the same bytes are there now."""
        return measure(path) == (self.bytes, self.sha256)


def measure(path: Path) -> tuple[int, str] | None:
    """Size and SHA-256 of a file, or of all files in a folder by name; None if it is missing."""
    try:
        if not path.is_dir():
            return _measure_file(path)
        total, digest = 0, hashlib.sha256()
        for name in sorted(os.fsencode(entry.name) for entry in path.iterdir()):
            size, sha256 = _measure_file(path / os.fsdecode(name))
            total += size
            digest.update(b"%s\0%d\0%s\n" % (name, size, sha256.encode()))
        return total, digest.hexdigest()
    except FileNotFoundError:
        return None


def _measure_file(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return os.fstat(file.fileno()).st_size, digest.hexdigest()


def read_table(path: Path) -> Any:
    """The JSON in a manifest; OSError, or ValueError or RecursionError if it is none."""
    with path.open("rb") as file:
        return json.loads(file.read(_MOST_BYTES))


def read_parts(folder: Path, split: Split) -> Mapping[str, WrittenPart] | None:
    """The parts of a split by name; None if no manifest lists them."""
    with _manifest(folder) as table:
        entries = table.get("splits", {}).get(split)
        if entries is None:
            return None
        parts = [WrittenPart.from_json(entry) for entry in entries["shards"]]
        return {part.name: part for part in parts}


def read_class_names(folder: Path) -> tuple[str, ...]:
    """Of all classes, those without a record too; none if no manifest lists them."""
    with _manifest(folder) as table:
        names = table.get("class_names", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("names are strings")
        if len(names) > MOST_CLASSES:
            raise ValueError("too many of them")
        return tuple(names)


@contextmanager
def _manifest(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The table in the file, empty if there is no file; whatever is wrong in it is one error."""
    path = folder / NAME
    try:
        table = read_table(path) if path.is_file() else {"splits": {}}
        if not isinstance(table["splits"], dict):
            raise TypeError("splits have names")
        yield table
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: not a manifest of `convoy data convert`; remove it to do without its checks"
        ) from error


def refuse_unfinished(folder: Path) -> None:
    """An unfinished conversion looks like a smaller data set."""
    if (folder / JOURNAL).exists() and not (folder / NAME).exists():
        raise DataError(
            f"{folder}: `convoy data convert` has not finished here; run the same command again "
            "to continue"
        )


def refuse_other_shards(folder: Path, parts: Mapping[str, WrittenPart], names: list[str]) -> None:
    """The shards on disk are those that were written, no more and no less."""
    missing = sorted(parts.keys() - set(names))
    extra = sorted(set(names) - parts.keys())
    if missing or extra:
        problems = [f"lacks {missing[0]}{_more(missing)}"] if missing else []
        problems += [f"has {extra[0]}{_more(extra)}, which is not listed"] if extra else []
        raise DataError(
            f"{folder}: {NAME} lists {len(parts)} shards, the folder {' and '.join(problems)}; "
            f"convert the data again"
        )


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def refuse_lost_records(folder: Path, parts: Mapping[str, WrittenPart], index: Index) -> None:
    """A shard without a visible fault holds what was written.

    One with a fault is left to the policy for bad records, which counts it.
    """
    faulty = {fault.file for fault in index.faults}
    for file in index.files:
        then = parts[file.name]
        if file.name not in faulty and (then.bytes, then.records) != (file.bytes, file.records):
            raise DataError(
                f"{folder / file.name}: {file.records} records in {file.bytes} bytes, but {NAME} "
                f"lists {then.records} in {then.bytes}; convert the data again, or copy this shard"
            )


_DIFFERENCES = {
    "source": "from other data, or the data has changed since",
    "form": "into another form",
    "shuffle": "in another order",
    "splits": "with other splits or shards",
}


@dataclass(frozen=True)
class Journal:
    """Open for one conversion; made by `open_journal`."""

    handle: int
    done: dict[str, WrittenPart]
    lock: Lock = field(default_factory=Lock)

    def add(self, part: WrittenPart) -> None:
        with self.lock:
            _append(self.handle, asdict(part))
            self.done[part.name] = part


@contextmanager
def open_journal(target: Path, identity: Mapping[str, Any]) -> Iterator[Journal]:
    """Of a new conversion, or of this one; ConfigError for a target with other content."""
    _refuse_foreign(target)
    finished, parts = (None, []) if (target / JOURNAL).exists() else _read_manifest(target / NAME)
    _refuse_other(target, finished or identity, identity)
    target.mkdir(parents=True, exist_ok=True)
    handle = os.open(target / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"{target}: another process converts into this folder") from None
        known, done = _read(handle)
        _refuse_other(target, known or identity, identity)
        if known is None:
            done = parts
            _append(handle, identity, *(asdict(part) for part in done))
            sync_folder(target)
        yield Journal(handle, {part.name: part for part in done})
    finally:
        os.close(handle)


def _refuse_foreign(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: not a folder; name a new one to convert into")
    names = {path.name for path in target.iterdir()} if target.exists() else set()
    others = sorted(names - {JOURNAL})
    started = JOURNAL in names and (target / JOURNAL).stat().st_size > 0
    if others and not started and NAME not in names:
        raise ConfigError(
            f"{target}: not empty, {shown(others[0])} is in it; name a new folder to convert into"
        )


def _read(handle: int) -> tuple[Any, list[WrittenPart]]:
    """Which conversion it is and what is done of it; half a line after a crash is cut off."""
    known, done, end = None, [], 0
    with os.fdopen(os.dup(handle), "rb") as file:
        for line in takewhile(lambda line: line.endswith(b"\n"), file):
            try:
                table = json.loads(line)
                if known is not None:
                    done.append(WrittenPart.from_json(table))
            except (ValueError, KeyError, TypeError, AttributeError):
                break
            known = table if known is None else known
            end += len(line)
    os.ftruncate(handle, end)
    return known, done


def _read_manifest(path: Path) -> tuple[Any, list[WrittenPart]]:
    """A finished conversion: its parts are checked, and written again where they are not right."""
    if not path.is_file():
        return None, []
    try:
        table = read_table(path)
        shards = [shard for split in table["splits"].values() for shard in split["shards"]]
        return table["conversion"], [WrittenPart.from_json(shard) for shard in shards]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(
            f"{path}: not a manifest of this program; name a new folder to convert into"
        ) from None


def _refuse_other(target: Path, known: Any, identity: Mapping[str, Any]) -> None:
    table = known if isinstance(known, dict) else {}
    differ = [key for key in _DIFFERENCES if table.get(key) != identity[key]]
    if differ:
        raise ConfigError(
            f"{target}: holds another conversion, "
            f"{' and '.join(_DIFFERENCES[key] for key in differ)}; "
            "run the same command to continue it, or name a new folder"
        )


def _append(handle: int, *tables: Mapping[str, Any]) -> None:
    text = "".join(json.dumps(table) + "\n" for table in tables).encode()
    while text:
        text = text[os.write(handle, text) :]
    os.fsync(handle)
