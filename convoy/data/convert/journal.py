"""What a conversion has finished, part by part, so that the same words go on where it ended.

The first line says which conversion it is, each other one tells of a part that is whole. A target
that holds anything else is left alone. When all is written the manifest takes its place.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from threading import Lock
from typing import Any

from convoy.config.user_text import shown
from convoy.data.records.manifest import JOURNAL, NAME
from convoy.data.whole_files import Measured, sync_folder
from convoy.errors import BusyError, ConfigError

_MOST_MANIFEST = 2**24
_CALLED = {
    "source": "from other data, or the data has changed since",
    "form": "into another form",
    "shuffle": "in another order",
    "splits": "with other splits or shards",
}


@dataclass(frozen=True)
class LeftOut:
    """A bad record of the source: its number there, and in words."""

    number: int
    says: str


@dataclass(frozen=True)
class Done:
    """A part that is whole."""

    name: str
    records: int
    measured: Measured
    left_out: tuple[LeftOut, ...] = ()

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> "Done":
        left_out = tuple(LeftOut(**one) for one in table["left_out"])
        measured = Measured(table["bytes"], table["sha256"])
        return cls(table["name"], table["records"], measured, left_out)

    def written(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **asdict(self.measured),
            "records": self.records,
            "left_out": [asdict(one) for one in self.left_out],
        }


class Journal:
    """Open for one conversion; made by `open_journal`."""

    def __init__(self, handle: int, done: dict[str, Done]) -> None:
        self.done = done
        self._handle = handle
        self._lock = Lock()

    def add(self, done: Done) -> None:
        with self._lock:
            _append(self._handle, done.written())
            self.done[done.name] = done


@contextmanager
def open_journal(target: Path, identity: Mapping[str, Any]) -> Iterator[Journal]:
    """That of a new conversion, or of this one; ConfigError for a target that is taken."""
    _refuse_foreign(target)
    whole, parts = (None, []) if (target / JOURNAL).exists() else _read_manifest(target / NAME)
    _refuse_other(target, whole or identity, identity)
    target.mkdir(parents=True, exist_ok=True)
    handle = os.open(target / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        _lock(handle, target)
        known, done = _read(handle)
        _refuse_other(target, known or identity, identity)
        if known is None:
            done = parts
            _append(handle, identity, *(one.written() for one in done))
            sync_folder(target)
        yield Journal(handle, {one.name: one for one in done})
    finally:
        os.close(handle)


def _refuse_foreign(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: not a folder; name a new one to convert into")
    names = sorted(path.name for path in target.iterdir()) if target.exists() else []
    started = (target / JOURNAL).exists() and (target / JOURNAL).stat().st_size > 0
    others = [name for name in names if name != JOURNAL]
    if others and not started and NAME not in names:
        raise ConfigError(
            f"{target}: not empty, {shown(others[0])} is in it; name a new folder to convert into"
        )


def _lock(handle: int, target: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyError(f"{target}: another process converts into this folder") from None


def _read(handle: int) -> tuple[Any, list[Done]]:
    """Which conversion it is and what is done of it; what a crash has left of a line is cut off."""
    known, done, end = None, [], 0
    with os.fdopen(os.dup(handle), "rb") as file:
        for line in takewhile(lambda line: line.endswith(b"\n"), file):
            try:
                table = json.loads(line)
                if known is not None:
                    done.append(Done.read(table))
            except (ValueError, KeyError, TypeError):
                break
            known = table if known is None else known
            end += len(line)
    os.ftruncate(handle, end)
    return known, done


def _read_manifest(path: Path) -> tuple[Any, list[Done]]:
    """A finished conversion: its parts are checked, and written again where they are not right."""
    if not path.is_file():
        return None, []
    try:
        with path.open("rb") as file:
            table = json.loads(file.read(_MOST_MANIFEST))
        shards = [one for split in table["splits"].values() for one in split["shards"]]
        return table["conversion"], [Done.read(one) for one in shards]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(
            f"{path}: not a manifest of this program; name a new folder to convert into"
        ) from None


def _refuse_other(target: Path, known: Any, identity: Mapping[str, Any]) -> None:
    table = known if isinstance(known, dict) else {}
    differ = [key for key in _CALLED if table.get(key) != identity[key]]
    if differ:
        raise ConfigError(
            f"{target}: holds another conversion, {' and '.join(_CALLED[key] for key in differ)}; "
            "give the same words to go on with it, or name a new folder"
        )


def _append(handle: int, *tables: Mapping[str, Any]) -> None:
    text = "".join(json.dumps(table) + "\n" for table in tables).encode()
    while text:
        text = text[os.write(handle, text) :]
    os.fsync(handle)
