"""The index of a split: read where it is kept and still true, built otherwise, and kept.

It lies beside the data, or in the user's cache folder where the data cannot be written. Two
processes that build at once write the same bytes under names of their own; the last rename wins.
"""

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convoy.config.user_text import printable
from convoy.data.records import index_file
from convoy.data.records.index import Index, IndexedFile, Kind
from convoy.data.records.index_checks import BadIndexError
from convoy.data.records.joining import join
from convoy.data.records.manifest import read_told, refuse_lost_records, refuse_other_shards
from convoy.data.records.scan import ShardScan, with_lost
from convoy.data.source import Split
from convoy.errors import DataError

Notice = Callable[[str], None]  # a line for the user
Progress = Callable[[int, int], None]  # bytes read, bytes in all
Scan = Callable[[Path], ShardScan]

_THREADS = 4  # more wait for the disk together; the reading itself is bound to one core
_SHOWN_CHANGES = 3


def unheard(*words: object) -> None:
    """In the place of either, where another process tells it, or nobody need know."""
    del words


@dataclass(frozen=True)
class ShardSet:
    """The shards of one split, in the order of their records."""

    folder: Path
    split: Split
    kind: Kind
    paths: tuple[Path, ...]


def open_index(shards: ShardSet, scan: Scan, notice: Notice, progress: Progress) -> Index:
    """The index of these shards as they are now; DataError where a manifest says otherwise."""
    told = read_told(shards.folder, shards.split)
    if told is not None:
        refuse_other_shards(shards.folder, told, [path.name for path in shards.paths])
    index, before = _stored(shards, notice)
    if index is None:
        written = {name: one.records for name, one in (told or {}).items()}
        index = _build(shards, partial(_whole, scan, written), notice, progress)
        if told is None:
            _refuse_fewer(shards, index, before)
        _keep(shards, index, notice)
    if told is not None:
        refuse_lost_records(shards.folder, told, index)
    return index


def kept_checksums(shards: ShardSet) -> dict[str, npt.NDArray[np.uint32]]:
    """CRC32C of the images of each shard, as a kept index knows them that is not out of date."""
    index, _ = _stored(shards, unheard)
    if index is None or not len(index.crc):
        return {}
    return {file.name: index.crc[index.file == number] for number, file in enumerate(index.files)}


def _whole(scan: Scan, written: Mapping[str, int], path: Path) -> ShardScan:
    """A shard with the places of all records that were written to it."""
    return with_lost(scan(path), written.get(path.name, 0))


def _refuse_fewer(shards: ShardSet, index: Index, before: Mapping[str, tuple[int, Path]]) -> None:
    """A shard that was cut between two records looks whole; only the index of before can tell."""
    faulty = {fault.file for fault in index.faults}
    for file in index.files:
        then, kept = before.get(file.name, (0, Path()))
        if file.records < then and file.name not in faulty:
            raise DataError(
                f"{shards.folder / file.name}: {file.records} records, it had {then} when it was "
                f"indexed; restore it, or remove {kept} to take it as it is"
            )


def look(path: Path) -> IndexedFile:
    """A shard as it is now, its records not counted."""
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{printable(str(path))}: {error.strerror}") from error
    return IndexedFile(path.name, found.st_size, found.st_mtime_ns, 0)


def places(shards: ShardSet) -> list[Path]:
    """Where an index may lie, the best place first."""
    beside = shards.folder / f".convoy-{shards.split}.index"
    cache = _cache_folder()
    if cache is None:
        return [beside]
    folder = hashlib.sha256(os.fsencode(shards.folder.resolve())).hexdigest()[:32]
    return [beside, cache / f"{folder}-{shards.split}.index"]


def _cache_folder() -> Path | None:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():  # the standard says to ignore others
        return given / "convoy"
    if not os.environ.get("HOME", "unset"):
        return None
    try:
        return Path.home() / ".cache" / "convoy"
    except RuntimeError:  # a user without a home
        return None


def _stored(shards: ShardSet, notice: Notice) -> tuple[Index | None, dict[str, tuple[int, Path]]]:
    """A kept index that tells of the files as they are now; else what one told of them before."""
    now = [look(path) for path in shards.paths]
    complaints = []
    before: dict[str, tuple[int, Path]] = {}
    for place in places(shards):
        try:
            if not place.is_file():
                continue
            index = index_file.load(place)
        except (OSError, BadIndexError) as error:
            complaints.append(f"{place}: not a usable index: {error}")
            continue
        changes = [] if index.kind == shards.kind else [f"it is of {index.kind} shards"]
        changes += _changes(index.files, now)
        if not changes:
            return index, {}
        before = {file.name: (file.records, place) for file in index.files} | before
        rest = f", and {len(changes) - _SHOWN_CHANGES} more" * (len(changes) > _SHOWN_CHANGES)
        complaints.append(f"{place}: out of date: {'; '.join(changes[:_SHOWN_CHANGES])}{rest}")
    for complaint in complaints:
        notice(f"{complaint}; the shards are indexed anew")
    return None, before


def _changes(then: Iterable[IndexedFile], now: list[IndexedFile]) -> list[str]:
    """In words, what is not as it was."""
    before, after = ({file.name: file for file in files} for files in (then, now))
    found = [f"{name} is gone" for name in before if name not in after]
    for name, file in after.items():
        known = before.get(name)
        if known is None:
            found.append(f"{name} is new")
        elif known.bytes != file.bytes:
            found.append(f"{name} has {file.bytes} bytes, had {known.bytes}")
        elif known.mtime_ns != file.mtime_ns:
            found.append(f"{name} was written since")
    if not found and list(before) != list(after):
        found.append("the shards are in another order")
    return found


def _build(shards: ShardSet, scan: Scan, notice: Notice, progress: Progress) -> Index:
    """Read all shards, several at once."""
    total = sum(look(path).bytes for path in shards.paths)
    done, scans = 0, {}
    progress(0, total)
    pool = ThreadPoolExecutor(min(_THREADS, len(shards.paths)) or 1)
    try:
        waiting = {pool.submit(_scan, scan, path): path for path in shards.paths}
        for future in as_completed(waiting):
            file, found = future.result()
            scans[waiting[future]] = (file, found)
            done += file.bytes
            progress(done, total)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return join(shards.kind, [scans[path] for path in shards.paths], notice)


def _scan(scan: Scan, path: Path) -> tuple[IndexedFile, ShardScan]:
    before = look(path)
    try:
        found = scan(path)
    except OSError as error:
        raise DataError(f"{printable(str(path))}: cannot be read: {error.strerror}") from error
    after = look(path)
    if before != after:
        raise DataError(
            f"{printable(str(path))}: changed while it was indexed: {before.bytes} bytes before, "
            f"{after.bytes} after; wait until it is written"
        )
    return IndexedFile(before.name, before.bytes, before.mtime_ns, len(found.label)), found


def _keep(shards: ShardSet, index: Index, notice: Notice) -> None:
    """Write it to the first place that takes it; the run goes on where none does."""
    reasons = []
    for place in places(shards):
        draft = place.with_name(f"{place.name}.tmp-{secrets.token_hex(6)}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            index_file.save(index, draft)
            draft.replace(place)
            return
        except (OSError, BadIndexError) as error:
            reasons.append(f"{place}: {error}")
            with suppress(OSError):  # nothing was written there, or it cannot be undone
                draft.unlink(missing_ok=True)
    notice(f"the index is not kept, the next run builds it again: {'; '.join(reasons)}")
