"""Build the index of a split by scanning its shards, and store it for later runs.

It is stored beside the data or in the user's cache, and reused while the shards are unchanged.
"""

import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convoy.data.progress import SILENT, ProgressCallbacks, ProgressCounter, WorkerThreads
from convoy.data.records import index as index_file
from convoy.data.records.index import MAX_FAULTS, Fault, Index, IndexedFile, ShardFormat
from convoy.data.records.manifest import check_record_counts, check_shard_names, read_parts
from convoy.data.records.record import NO_BOXES, UNKNOWN_LABEL, Boxes, reading_errors
from convoy.data.records.shards import ShardSet
from convoy.errors import DataError
from convoy.files import atomic_path
from convoy.text import pluralize, printable, quote_shortened

Scan = Callable[[Path], "ShardScan"]
ScannedShard = tuple[IndexedFile, "ShardScan"]

_THREADS = 4  # overlap waiting for the disk; parsing itself is bound to one core by the GIL
_MAX_SHOWN_CHANGES = 3


class ShardScan:
    """The records of one shard, in order. Arrays take a quarter of the memory of lists."""

    def __init__(self, with_checksums: bool = False) -> None:
        self.offset = array("q")
        self.size = array("q")
        self.label = array("i")
        self.crc = array("I")  # of every image, or empty
        self.box_count = array("q")
        self.faults: list[tuple[int, str]] = []  # index within the shard, reason
        self.names: dict[int, str] = {}  # label → class name, if the shard has one
        self._has_crc = with_checksums
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
        """Add a record that cannot be used; later records keep their indices."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append((len(self.label), reason))
        self.add(offset, size, UNKNOWN_LABEL, NO_BOXES)

    def add_missing(self, records: int) -> None:
        """Pad a damaged shard to its original number of records, so that indices do not shift."""
        if self.faults:
            last, reason = self.faults[-1]
            for _ in range(records - len(self.label)):
                self.add_bad(self.offset[last], 0, f"lost: {reason}")


def join_scans(
    shard_format: ShardFormat, shards: Sequence[ScannedShard], callbacks: ProgressCallbacks = SILENT
) -> Index:
    scans = [scan for _, scan in shards]
    label = np.concatenate([scan.label for scan in scans])
    counts = [len(scan.label) for scan in scans]
    return Index(
        shard_format=shard_format,
        files=tuple(file for file, _ in shards),
        class_names=_class_names(shards, int(label.max(initial=UNKNOWN_LABEL)) + 1, callbacks),
        faults=_faults(shards),
        file=np.repeat(np.arange(len(shards), dtype=np.uint32), counts),
        offset=np.concatenate([scan.offset for scan in scans]),
        size=np.concatenate([scan.size for scan in scans]),
        label=label,
        crc=np.concatenate([scan.crc for scan in scans]),
        box_end=np.concatenate([scan.box_count for scan in scans]).cumsum(),
        boxes=np.concatenate([scan.boxes for scan in scans]),
    )


def _class_names(
    shards: Sequence[ScannedShard], classes: int, callbacks: ProgressCallbacks
) -> tuple[str, ...]:
    """Class names as the shards have them; where they disagree, the first one is used."""
    names: dict[int, tuple[str, str]] = {}
    for file, scan in shards:
        for label, name in scan.names.items():
            first, first_file = names.setdefault(label, (name, file.name))
            if name != first:
                callbacks.on_notice(
                    f"class {label} is named {quote_shortened(first)} in {first_file} and "
                    f"{quote_shortened(name)} in {file.name}; using the first name"
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
    return tuple(faults[:MAX_FAULTS])


def open_index(shards: ShardSet, scan: Scan, callbacks: ProgressCallbacks = SILENT) -> Index:
    """Load or build the index of the shards; raise DataError if it contradicts the manifest."""
    parts = read_parts(shards.folder, shards.split)
    if parts is not None:
        check_shard_names(shards.folder, parts, [path.name for path in shards.paths])
    index, previous = _load_index(shards, callbacks)
    if index is None:
        records = {name: part.records for name, part in (parts or {}).items()}
        index = _build_index(shards, scan, records, callbacks)
        if parts is None:
            _check_no_lost_records(shards, index, previous)
        _save_index(shards, index, callbacks)
    if parts is not None:
        check_record_counts(shards.folder, parts, index)
    return index


def stored_checksums(shards: ShardSet) -> dict[str, npt.NDArray[np.uint32]]:
    """Return the CRC32C of the images of each shard, from a stored index that is up to date."""
    index, _ = _load_index(shards, SILENT)
    if index is None or not len(index.crc):
        return {}
    return {file.name: index.crc[index.file == number] for number, file in enumerate(index.files)}


def _check_no_lost_records(
    shards: ShardSet, index: Index, previous: Mapping[str, tuple[int, Path]]
) -> None:
    """Compare with the previous index: a shard truncated between two records looks complete."""
    faulty = {fault.file for fault in index.faults}
    for file in index.files:
        records, index_path = previous.get(file.name, (0, Path()))
        if file.records < records and file.name not in faulty:
            raise DataError(
                f"{shards.folder / file.name}: {pluralize(file.records, 'record')}, but {records} "
                f"when it was indexed; restore the shard, or remove {index_path} to accept it"
            )


def _stat_shard(path: Path) -> IndexedFile:
    """Return size and modification time of a shard; its records are not counted."""
    with reading_errors(path):
        status = path.stat()
    return IndexedFile(path.name, status.st_size, status.st_mtime_ns, 0)


def index_paths(shards: ShardSet) -> list[Path]:
    """Paths for a stored index, in order of preference: beside the data, in the user's cache."""
    paths = [shards.folder / f".convoy-{shards.split}.index"]
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the XDG specification says to ignore relative paths
        if not os.environ.get("HOME", "unset"):
            return paths
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:  # a user without a home
            return paths
    folder = hashlib.sha256(os.fsencode(shards.folder.resolve())).hexdigest()[:32]
    return [*paths, cache / "convoy" / f"{folder}-{shards.split}.index"]


def _load_index(
    shards: ShardSet, callbacks: ProgressCallbacks
) -> tuple[Index | None, dict[str, tuple[int, Path]]]:
    """Load an index that is up to date; otherwise return the record counts of an outdated one."""
    now = [_stat_shard(path) for path in shards.paths]
    problems = []
    previous: dict[str, tuple[int, Path]] = {}
    for path in index_paths(shards):
        try:
            if not path.is_file():
                continue
            index = index_file.load(path)
        except (OSError, index_file.BadIndexError) as error:
            problems.append(f"{path}: unusable index: {error}")
            continue
        changes = []
        if index.shard_format != shards.shard_format:
            changes.append(f"it describes {index.shard_format} shards")
        changes += _describe_changes(index.files, now)
        if not changes:
            return index, {}
        previous = {file.name: (file.records, path) for file in index.files} | previous
        hidden = len(changes) - _MAX_SHOWN_CHANGES
        more = f", and {hidden} more" if hidden > 0 else ""
        problems.append(f"{path}: out of date: {'; '.join(changes[:_MAX_SHOWN_CHANGES])}{more}")
    for problem in problems:
        callbacks.on_notice(f"{problem}; indexing the shards again")
    return None, previous


def _describe_changes(old_files: Iterable[IndexedFile], new_files: list[IndexedFile]) -> list[str]:
    old, new = ({file.name: file for file in files} for files in (old_files, new_files))
    changes = [f"{name} is missing" for name in old if name not in new]
    for name, file in new.items():
        known = old.get(name)
        if known is None:
            changes.append(f"{name} is new")
        elif known.bytes != file.bytes:
            changes.append(f"{name} has {file.bytes} bytes, had {known.bytes}")
        elif known.mtime_ns != file.mtime_ns:
            changes.append(f"{name} was modified")
    if not changes and list(old) != list(new):
        changes.append("the shards are in a different order")
    return changes


def _build_index(
    shards: ShardSet, scan: Scan, records: Mapping[str, int], callbacks: ProgressCallbacks
) -> Index:
    """Scan all shards in parallel; `records` is how many were written to each, if known."""
    total = sum(_stat_shard(path).bytes for path in shards.paths)
    counter = ProgressCounter(total, callbacks.bytes_progress)

    def scan_shard(path: Path) -> ScannedShard:
        scanned = scan_file(scan, path, records.get(path.name, 0))
        counter.add(scanned[0].bytes)
        return scanned

    with WorkerThreads(min(_THREADS, len(shards.paths)) or 1) as threads:
        scans = threads.run(scan_shard, shards.paths)
    return join_scans(shards.shard_format, scans, callbacks)


def scan_file(scan: Scan, path: Path, records: int = 0) -> ScannedShard:
    """Scan one shard, to which at least `records` were written; raise DataError if it fails."""
    earlier = _stat_shard(path)
    with reading_errors(path):
        scanned = scan(path)
    later = _stat_shard(path)
    if earlier != later:
        raise DataError(
            f"{printable(str(path))}: changed while it was indexed: {earlier.bytes} bytes before, "
            f"{later.bytes} after; wait until it is completely written"
        )
    scanned.add_missing(records)
    return IndexedFile(earlier.name, earlier.bytes, earlier.mtime_ns, len(scanned.label)), scanned


def _save_index(shards: ShardSet, index: Index, callbacks: ProgressCallbacks) -> None:
    """Save the index to the first writable path; if there is none, the run continues."""
    reasons = []
    for path in index_paths(shards):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary:
                index_file.save(index, temporary)
            return
        except (OSError, index_file.BadIndexError) as error:
            reasons.append(f"{path}: {error}")
    callbacks.on_notice(
        f"the index could not be saved, so the next run rebuilds it: {'; '.join(reasons)}"
    )
