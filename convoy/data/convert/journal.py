"""What a conversion has finished, part by part, so that the same command continues it.

The first line identifies the conversion, every other one is a finished part. A target that holds
anything else is left alone. When all parts are written the manifest replaces the journal.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from threading import Lock
from typing import Any

from convoy.data.records.manifest import JOURNAL, NAME, WrittenPart, read_table
from convoy.errors import BusyError, ConfigError
from convoy.files import sync_folder
from convoy.text import shown

_DIFFERENCES = {
    "source": "from other data, or the data has changed since",
    "form": "into another form",
    "shuffle": "in another order",
    "splits": "with other splits or shards",
}


class Journal:
    """Open for one conversion; made by `open_journal`."""

    def __init__(self, handle: int, done: dict[str, WrittenPart]) -> None:
        self.done = done
        self._handle = handle
        self._lock = Lock()

    def add(self, part: WrittenPart) -> None:
        with self._lock:
            _append(self._handle, part.as_json())
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
        _lock(handle, target)
        known, done = _read(handle)
        _refuse_other(target, known or identity, identity)
        if known is None:
            done = parts
            _append(handle, identity, *(part.as_json() for part in done))
            sync_folder(target)
        yield Journal(handle, {part.name: part for part in done})
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
