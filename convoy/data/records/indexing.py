"""Shards → Index: each is scanned record by record, then all are joined; the index is stored beside
the data or in the user's cache, and used again while the shards are as they were.
"""

import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convoy.data.progress import Notice, Progress, ProgressCounter, WorkerThreads, ignore
from convoy.data.records import index as index_file
from convoy.data.records.index import (
    MOST_FAULTS,
    BadIndexError,
    Fault,
    Index,
    IndexedFile,
    ShardFormat,
)
from convoy.data.records.manifest import read_parts, refuse_lost_records, refuse_other_shards
from convoy.data.records.record import NO_BOXES, UNKNOWN, Boxes
from convoy.data.records.shards import ShardSet
from convoy.errors import DataError
from convoy.files import atomic_path
from convoy.text import printable, shown

Scan = Callable[[Path], "ShardScan"]
ScannedShard = tuple[IndexedFile, "ShardScan"]

_THREADS = 4  # more wait for the disk together; the reading itself is bound to one core
_SHOWN_CHANGES = 3


class ShardScan:
    """The records of one shard, in its order. Compact arrays: lists would take four times more."""

    def __init__(self, has_crc: bool = False) -> None:
        self.offset = array("q")
        self.size = array("q")
        self.label = array("i")
        self.crc = array("I")  # of every image, or empty
        self.box_count = array("q")
        self.faults: list[tuple[int, str]] = []  # number within the shard, reason
        self.names: dict[int, str] = {}  # label → class name, where the shard has it
        self._has_crc = has_crc
        self._boxes: list[Boxes] = [NO_BOXES]

    @property
    def boxes(self) -> Boxes:
        return np.concatenate(self._boxes)

    def add(self, offset: int, size: int, label: int, boxes: Boxes, crc: int = 0) -> None:
        self.offset.append(offset)
        self.size.append(size)
        self.label.append(label)
        self.box_count.append(len(boxes))
        if len(boxes):
            self._boxes.append(boxes)
        if self._has_crc:
            self.crc.append(crc)

    def add_bad(self, offset: int, size: int, reason: str) -> None:
        """A record that cannot be used; those after it keep their numbers."""
        if len(self.faults) < MOST_FAULTS:
            self.faults.append((len(self.label), reason))
        self.add(offset, size, UNKNOWN, NO_BOXES)

    def add_lost(self, records: int) -> None:
        """A damaged shard that held so many records: those that are gone keep their numbers too."""
        if self.faults:
            last, reason = self.faults[-1]
            for _ in range(records - len(self.label)):
                self.add_bad(self.offset[last], 0, f"lost: {reason}")


def join(kind: ShardFormat, shards: Sequence[ScannedShard], notice: Notice) -> Index:
    scans = [scan for _, scan in shards]
    label = np.concatenate([np.empty(0, np.int32), *(scan.label for scan in scans)])
    empty = np.empty(0, np.int64)
    return Index(
        kind=kind,
        files=tuple(file for file, _ in shards),
        class_names=_class_names(shards, int(label.max(initial=UNKNOWN)) + 1, notice),
        faults=_faults(shards),
        file=np.repeat(
            np.arange(len(shards), dtype=np.uint32), [len(scan.label) for scan in scans]
        ),
        offset=np.concatenate([empty, *(scan.offset for scan in scans)]),
        size=np.concatenate([empty, *(scan.size for scan in scans)]),
        label=label,
        crc=np.concatenate([np.empty(0, np.uint32), *(scan.crc for scan in scans)]),
        box_end=np.concatenate([empty, *(scan.box_count for scan in scans)]).cumsum(),
        boxes=np.concatenate([NO_BOXES, *(scan.boxes for scan in scans)]),
    )


def _class_names(shards: Sequence[ScannedShard], classes: int, notice: Notice) -> tuple[str, ...]:
    """As the shards call them; the first name stays where they do not agree."""
    names: dict[int, tuple[str, str]] = {}
    for file, scan in shards:
        for label, name in scan.names.items():
            first, first_file = names.setdefault(label, (name, file.name))
            if name != first:
                notice(
                    f"class {label} is called {shown(first)} in {first_file} and {shown(name)} in "
                    f"{file.name}; the first is used"
                )
    return tuple(
        names[label][0] if label in names else f"class {label}" for label in range(classes)
    )


def _faults(shards: Sequence[ScannedShard]) -> tuple[Fault, ...]:
    faults, start = [], 0
    for file, scan in shards:
        faults += [
            Fault(start + number, file.name, scan.offset[number], reason)
            for number, reason in scan.faults
        ]
        start += len(scan.label)
    return tuple(faults[:MOST_FAULTS])


def open_index(shards: ShardSet, scan: Scan, notice: Notice, progress: Progress) -> Index:
    """The index of these shards as they are now; DataError if a manifest says otherwise."""
    parts = read_parts(shards.folder, shards.split)
    if parts is not None:
        refuse_other_shards(shards.folder, parts, [path.name for path in shards.paths])
    index, before = _load_stored(shards, notice)
    if index is None:
        records = {name: part.records for name, part in (parts or {}).items()}
        index = _build(shards, scan, records, notice, progress)
        if parts is None:
            _refuse_fewer(shards, index, before)
        _store(shards, index, notice)
    if parts is not None:
        refuse_lost_records(shards.folder, parts, index)
    return index


def stored_checksums(shards: ShardSet) -> dict[str, npt.NDArray[np.uint32]]:
    """CRC32C of the images of each shard, from a stored index that is up to date."""
    index, _ = _load_stored(shards, ignore)
    if index is None or not len(index.crc):
        return {}
    return {file.name: index.crc[index.file == number] for number, file in enumerate(index.files)}


def _refuse_fewer(shards: ShardSet, index: Index, before: Mapping[str, tuple[int, Path]]) -> None:
    """A shard cut between two records looks complete; only its former index shows the loss."""
    faulty = {fault.file for fault in index.faults}
    for file in index.files:
        records, stored = before.get(file.name, (0, Path()))
        if file.records < records and file.name not in faulty:
            raise DataError(
                f"{shards.folder / file.name}: {file.records} records, it had {records} when it "
                f"was indexed; restore it, or remove {stored} to take it as it is"
            )


def _shard_state(path: Path) -> IndexedFile:
    """A shard as it is now, its records not counted."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{printable(str(path))}: {error.strerror}") from error
    return IndexedFile(path.name, status.st_size, status.st_mtime_ns, 0)


def index_paths(shards: ShardSet) -> list[Path]:
    """Where an index may be stored, the best path first: beside the data, in the user's cache."""
    paths = [shards.folder / f".convoy-{shards.split}.index"]
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the standard says to ignore others
        if not os.environ.get("HOME", "unset"):
            return paths
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:  # a user without a home
            return paths
    folder = hashlib.sha256(os.fsencode(shards.folder.resolve())).hexdigest()[:32]
    return [*paths, cache / "convoy" / f"{folder}-{shards.split}.index"]


def _load_stored(
    shards: ShardSet, notice: Notice
) -> tuple[Index | None, dict[str, tuple[int, Path]]]:
    """An index that is up to date; else the records of each file in an outdated one."""
    now = [_shard_state(path) for path in shards.paths]
    problems = []
    before: dict[str, tuple[int, Path]] = {}
    for path in index_paths(shards):
        try:
            if not path.is_file():
                continue
            index = index_file.load(path)
        except (OSError, BadIndexError) as error:
            problems.append(f"{path}: not a usable index: {error}")
            continue
        changes = [] if index.kind == shards.kind else [f"it is of {index.kind} shards"]
        changes += _changes(index.files, now)
        if not changes:
            return index, {}
        before = {file.name: (file.records, path) for file in index.files} | before
        more = f", and {len(changes) - _SHOWN_CHANGES} more" * (len(changes) > _SHOWN_CHANGES)
        problems.append(f"{path}: out of date: {'; '.join(changes[:_SHOWN_CHANGES])}{more}")
    for problem in problems:
        notice(f"{problem}; the shards are indexed anew")
    return None, before


def _changes(then: Iterable[IndexedFile], now: list[IndexedFile]) -> list[str]:
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


def _build(
    shards: ShardSet, scan: Scan, records: Mapping[str, int], notice: Notice, progress: Progress
) -> Index:
    """Scan all shards, several at once; `records` of each were written, if that is known."""
    counter = ProgressCounter(sum(_shard_state(path).bytes for path in shards.paths), progress)

    def scan_shard(path: Path) -> ScannedShard:
        scanned = scan_file(scan, path, records.get(path.name, 0))
        counter.add(scanned[0].bytes)
        return scanned

    with WorkerThreads(min(_THREADS, len(shards.paths)) or 1) as threads:
        return join(shards.kind, threads.run(scan_shard, shards.paths), notice)


def scan_file(scan: Scan, path: Path, records: int = 0) -> ScannedShard:
    """One shard, to which at least `records` were written; DataError if it cannot be read."""
    before = _shard_state(path)
    try:
        found = scan(path)
    except OSError as error:
        raise DataError(f"{printable(str(path))}: cannot be read: {error.strerror}") from error
    after = _shard_state(path)
    if before != after:
        raise DataError(
            f"{printable(str(path))}: changed while it was indexed: {before.bytes} bytes before, "
            f"{after.bytes} after; wait until it is written"
        )
    found.add_lost(records)
    return IndexedFile(before.name, before.bytes, before.mtime_ns, len(found.label)), found


def _store(shards: ShardSet, index: Index, notice: Notice) -> None:
    """Write it to the first path that can be written; without one the run continues."""
    reasons = []
    for path in index_paths(shards):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary:
                index_file.save(index, temporary)
            return
        except (OSError, BadIndexError) as error:
            reasons.append(f"{path}: {error}")
    notice(f"the index is not kept, the next run builds it again: {'; '.join(reasons)}")
