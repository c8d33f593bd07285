"""Find the complete set of shards of a split, and read their records by index.

Shards are TFRecord (`train-00000-of-01024`) or tar files (`train-000000.tar`). The reference's
folder `distributed/` beside tar shards repeats their samples and is ignored.
"""

import errno
import filecmp
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from convoy.data.records.folder import SPLIT_NAMES
from convoy.data.records.index import Index, IndexedFile, ShardFormat
from convoy.data.records.ledger import BadRecordError, RecordLocation
from convoy.data.records.record import (
    UNKNOWN_LABEL,
    Boxes,
    EncodedImage,
    check_unchanged,
    locate_errors,
    open_file,
    read_range,
    reading_errors,
)
from convoy.data.source import Labels, Split
from convoy.errors import ConfigError, DataError
from convoy.text import printable

_TFRECORD = re.compile(r"(train|validation)-(\d{5,9})-of-(\d{5,9})")
# Matches `train-000001.tar`, `train_1.tar`, `train.tar` and compressed ones; not `training.tar`.
_TAR = re.compile(r"(train|validation|val)(?:[^a-zA-Z].*)?\.(?:tar(?:\.\w+)?|tgz)", re.DOTALL)
_TAR_NUMBER = re.compile(r"\D*(\d{1,18})\.tar", re.ASCII)
_COMPARED_BYTES = 2**12  # at the start, which differs in most shards of equal size


@dataclass(frozen=True)
class ShardSet:
    """The shards of one split, in the order of their records."""

    folder: Path
    split: Split
    shard_format: ShardFormat
    paths: tuple[Path, ...]


def list_shards(folder: Path, split: Split, shard_format: ShardFormat) -> list[Path]:
    """List the files named like a shard of this split, sorted; the set may be incomplete."""
    pattern = _TFRECORD if shard_format == "tfrecord" else _TAR
    with reading_errors(folder, "listed"):
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    matches = [pattern.fullmatch(name) for name in sorted(names, key=os.fsencode)]
    return [folder / match[0] for match in matches if match and match[1] in SPLIT_NAMES[split]]


def find_shards(folder: Path, split: Split, shard_format: ShardFormat) -> ShardSet:
    """Find the complete set; raise ConfigError if there is none, DataError if it is invalid."""
    paths = list_shards(folder, split, shard_format)
    if not paths:
        names = [f"{split}-?????-of-?????"]
        if shard_format == "webdataset":
            names = [f"{name}-000000.tar" for name in SPLIT_NAMES[split]]
        raise ConfigError(f"{folder}: no shards {' or '.join(names)}")
    if shard_format == "tfrecord":
        paths = _sort_by_number(folder, split, paths)
    else:
        _check_tar_names(folder, split, paths)
    try:
        for path in paths:
            if not path.is_file():
                raise DataError(f"{printable(str(path))}: not a regular file")
        if shard_format == "tfrecord":
            _check_no_duplicates(paths)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return ShardSet(folder, split, shard_format, tuple(paths))


def _sort_by_number(folder: Path, split: Split, paths: list[Path]) -> list[Path]:
    """Sort TFRecord shards by number; raise DataError unless every number exists once."""
    by_number: dict[int, list[Path]] = defaultdict(list)
    counts: dict[int, Path] = {}
    for path in paths:
        _, shard, _, shards = path.name.split("-")
        by_number[int(shard)].append(path)
        counts[int(shards)] = path
    if len(counts) > 1:
        names = " and ".join(counts[count].name for count in sorted(counts)[:2])
        raise DataError(f"{folder}: shards of two different sets: {names}; keep one set")
    (count,) = counts
    duplicates = next((paths for paths in by_number.values() if len(paths) > 1), None)
    if duplicates:
        names = " and ".join(path.name for path in duplicates)
        raise DataError(f"{folder}: one shard under two names: {names}; remove one of them")
    last = max(by_number)
    if last >= count:
        raise DataError(
            f"{by_number[last][0]}: out of range, the last of {count} shards is number {count - 1}"
        )
    if len(by_number) < count:
        missing = next(number for number in range(count) if number not in by_number)
        raise DataError(
            f"{folder}: {count - len(by_number)} of {count} {split} shards are missing, the first "
            f"is {split}-{missing:05}-of-{count:05}; copy them or convert the data again"
        )
    return [by_number[number][0] for number in range(count)]


def _check_no_duplicates(paths: Sequence[Path]) -> None:
    """Raise DataError for identical shards, whose records would count twice in every epoch."""
    sizes = [path.stat().st_size for path in paths]
    counts = Counter(sizes)
    candidates: dict[tuple[int, bytes], list[Path]] = defaultdict(list)
    for path, size in zip(paths, sizes, strict=True):
        if size == 0 or counts[size] == 1:
            continue
        with path.open("rb") as file:
            same_start = candidates[size, file.read(_COMPARED_BYTES)]
        for duplicate in same_start:
            if filecmp.cmp(path, duplicate, shallow=False):
                raise DataError(
                    f"{duplicate} and {path.name} contain the same {size} bytes; replace one of "
                    "them"
                )
        same_start.append(path)


def _check_tar_names(folder: Path, split: Split, paths: list[Path]) -> None:
    """Require plain tar files of one prefix; if all are numbered, every number exists once."""
    first_names = [
        next((path.name for path in paths if re.match(rf"{name}(?![a-z])", path.name)), None)
        for name in SPLIT_NAMES[split]
    ]
    if len(first_names) > 1 and None not in first_names:
        names = " and ".join(map(str, first_names))
        raise ConfigError(f"{folder}: shards with two prefixes, {names}; keep one of them")
    for path in paths:
        if path.suffix != ".tar":
            raise DataError(
                f"{printable(str(path))}: a compressed shard, which does not allow random access; "
                "decompress it to a plain .tar"
            )
    matches = [_TAR_NUMBER.fullmatch(path.name) for path in paths]
    numbered = sorted((int(match[1]), match[0]) for match in matches if match)
    if len(numbered) < len(paths):
        return
    first = min(numbered[0][0], 1)
    for expected, (number, name) in enumerate(numbered, start=first):
        if number < expected:
            raise DataError(f"{folder}: {name} exists under another name too; keep one of them")
        if number > expected:
            count = numbered[-1][0] - first + 1
            raise DataError(
                f"{folder}: {count - len(paths)} of {count} shards are missing, the first is "
                f"number {expected} ({name} exists); copy them, or renumber the shards"
            )


class ShardedRecords:
    """One split in indexed shards. Every read checks that the shard is unchanged since indexing."""

    first_label = 0  # on disk
    class_names_file: str  # the file that may list the class names

    def __init__(self, folder: Path, index: Index, class_names: tuple[str, ...]) -> None:
        """Without `class_names`, use those of the index."""
        self.class_names = class_names or index.class_names
        self.labels: Labels = index.label.astype(np.int64)
        self.labels[self.labels >= len(self.class_names)] = UNKNOWN_LABEL
        self.faults = index.faults
        self._folder = folder
        self._index = index
        self._reasons = {fault.number: fault.reason for fault in index.faults}

    def __len__(self) -> int:
        return len(self._index)

    def location(self, index: int) -> RecordLocation:
        return RecordLocation(
            printable(str(self._folder / self._shard_file(index).name)),
            int(self._index.offset[index]),
            self._index.index_in_file(index),
        )

    def boxes(self, index: int) -> Boxes:
        """Return the boxes of one image, without reading it."""
        start = int(self._index.box_end[index - 1]) if index else 0
        return self._index.boxes[start : int(self._index.box_end[index])]

    def fingerprint(self) -> str:
        """Identify the current shards by name, size and modification time."""
        return hashlib.sha256(repr(self._index.files).encode()).hexdigest()

    def filename_and_text(self, index: int) -> tuple[str, str]:
        """Return the name of the image file and the description of its class; empty if unknown."""
        raise NotImplementedError

    def read(self, index: int) -> EncodedImage:
        if self.labels[index] == UNKNOWN_LABEL:
            raise BadRecordError(self.location(index), self._bad_reason(index))
        with locate_errors(self, index):
            return EncodedImage(self._read_image(index), self.boxes(index))

    def _read_image(self, index: int) -> bytes | memoryview:
        """Read the image of a record; raise BadContentError if a checksum is wrong."""
        raise NotImplementedError

    def _bad_reason(self, index: int) -> str:
        label = int(self._index.label[index])
        if label == UNKNOWN_LABEL:
            return self._reasons.get(index, "found to be bad when the shards were indexed")
        first = self.first_label
        return (
            f"label {label + first}, but {self.class_names_file} lists {len(self.class_names)} "
            f"classes, starting at {first}"
        )

    def _shard_file(self, index: int) -> IndexedFile:
        return self._index.files[int(self._index.file[index])]

    def _raw(self, index: int) -> bytes:
        """Read a record. The shard is opened each time: thousands may be too many open files."""
        shard = self._shard_file(index)
        path = self._folder / shard.name
        # A read error may concern only this part of the disk.
        with open_file(os.fsencode(path), partial(self.location, index), {errno.EIO}) as file:
            name = printable(str(path))
            check_unchanged(name, shard.bytes, shard.mtime_ns, os.fstat(file))
            offset, size = int(self._index.offset[index]), int(self._index.size[index])
            return read_range(file, offset, size, name)
