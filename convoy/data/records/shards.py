"""The shards of a split, TFRecord (`train-00000-of-01024`) or tar (`train-000000.tar`): found as a
complete set, then read by number.

The reference's tar folder `distributed/` repeats samples of these shards and is ignored.
"""

import errno
import filecmp
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from convoy.data.records.folder import SPLIT_NAMES
from convoy.data.records.index import Index, IndexedFile, ShardFormat
from convoy.data.records.ledger import BadRecordError, RecordLocation
from convoy.data.records.record import (
    UNKNOWN,
    BadContentError,
    Boxes,
    EncodedImage,
    FileState,
    open_file,
    read_range,
    refuse_change,
)
from convoy.data.source import Labels, Split
from convoy.errors import ConfigError, DataError
from convoy.text import printable

_TFRECORD = re.compile(r"(train|validation)-(\d{5,9})-of-(\d{5,9})")
# `train-000001.tar`, `train_1.tar`, `train.tar` and compressed ones; not `training.tar`.
_TAR = re.compile(r"(train|validation|val)(?:[^a-zA-Z].*)?\.(?:tar(?:\.\w+)?|tgz)", re.DOTALL)
_TAR_NUMBER = re.compile(r"\D*(\d{1,18})\.tar", re.ASCII)
_COMPARED_BYTES = 2**12  # at both ends; they differ in most shards of equal size


@dataclass(frozen=True)
class ShardSet:
    """The shards of one split, in the order of their records."""

    folder: Path
    split: Split
    kind: ShardFormat
    paths: tuple[Path, ...]


def list_shards(folder: Path, split: Split, kind: ShardFormat) -> list[Path]:
    """All files named like a shard of this split, sorted; the set may be incomplete."""
    pattern = _TFRECORD if kind == "tfrecord" else _TAR
    try:
        matches = [
            (path, pattern.fullmatch(path.name))
            for path in (folder.iterdir() if folder.is_dir() else ())
        ]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error
    paths = [path for path, match in matches if match and match[1] in SPLIT_NAMES[split]]
    return sorted(paths, key=lambda path: os.fsencode(path.name))


def find_shards(folder: Path, split: Split, kind: ShardFormat) -> ShardSet:
    """The complete set; ConfigError if there is none, DataError if it cannot be used."""
    paths = list_shards(folder, split, kind)
    if not paths:
        names = [f"{split}-?????-of-?????"]
        if kind == "webdataset":
            names = [f"{name}-000000.tar" for name in SPLIT_NAMES[split]]
        raise ConfigError(f"{folder}: no shards {' or '.join(names)} here")
    if kind == "tfrecord":
        paths = _numbered(folder, split, paths)
    else:
        _check_tar_names(folder, split, paths)
    try:
        for path in paths:
            if not path.is_file():
                raise DataError(f"{printable(str(path))}: not a regular file")
        if kind == "tfrecord":
            _refuse_copies(paths)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return ShardSet(folder, split, kind, tuple(paths))


def _numbered(folder: Path, split: Split, paths: list[Path]) -> list[Path]:
    """TFRecord shards by number, if every number is there once."""
    by_number: dict[int, list[Path]] = defaultdict(list)
    counts: dict[int, Path] = {}
    for path in paths:
        _, shard, _, shards = path.name.split("-")
        by_number[int(shard)].append(path)
        counts[int(shards)] = path
    if len(counts) > 1:
        names = " and ".join(counts[count].name for count in sorted(counts)[:2])
        raise DataError(f"{folder}: shards of two sets: {names}; keep one of them")
    (count,) = counts
    several = next((paths for paths in by_number.values() if len(paths) > 1), None)
    if several:
        names = " and ".join(path.name for path in several)
        raise DataError(f"{folder}: one shard under two names: {names}; remove one of them")
    last = max(by_number)
    if last >= count:
        raise DataError(
            f"{by_number[last][0]}: the last of {count} shards has the number {count - 1}"
        )
    if len(by_number) < count:
        missing = next(number for number in range(count) if number not in by_number)
        raise DataError(
            f"{folder}: {count - len(by_number)} of {count} {split} shards are missing, the first "
            f"is {split}-{missing:05}-of-{count:05}; copy them or convert the data again"
        )
    return [by_number[number][0] for number in range(count)]


def _refuse_copies(paths: Sequence[Path]) -> None:
    """The same records under two names would count twice in every epoch."""
    alike: dict[tuple[int, bytes, bytes], list[Path]] = defaultdict(list)
    sizes: dict[int, list[Path]] = defaultdict(list)
    for path in paths:
        sizes[path.stat().st_size].append(path)
    for size, same_size in sizes.items():
        for path in same_size if size and len(same_size) > 1 else ():
            with path.open("rb") as file:
                first = file.read(_COMPARED_BYTES)
                file.seek(max(0, size - _COMPARED_BYTES))
                others = alike[size, first, file.read()]
            for other in others:
                if filecmp.cmp(path, other, shallow=False):
                    raise DataError(
                        f"{other} and {path.name} hold the same {size} bytes; get one of them anew"
                    )
            others.append(path)


def _check_tar_names(folder: Path, split: Split, paths: list[Path]) -> None:
    """Plain tar files of one name; if all are numbered, from 0 or 1, every number is there once."""
    firsts = [
        next((path.name for path in paths if re.match(rf"{name}(?![a-z])", path.name)), None)
        for name in SPLIT_NAMES[split]
    ]
    if len(firsts) > 1 and None not in firsts:
        names = " and ".join(map(str, firsts))
        raise ConfigError(f"{folder}: shards under two names, {names}; keep one kind of them")
    for path in paths:
        if path.suffix != ".tar":
            raise DataError(
                f"{printable(str(path))}: a compressed shard; samples are read in any order, "
                "which that does not allow: unpack it to a plain .tar"
            )
    matches = [_TAR_NUMBER.fullmatch(path.name) for path in paths]
    numbered = sorted((int(match[1]), match[0]) for match in matches if match)
    if len(numbered) < len(paths):
        return
    first = min(numbered[0][0], 1)
    for expected, (number, name) in enumerate(numbered, start=first):
        if number < expected:
            raise DataError(f"{folder}: {name} is there under another name too; keep one of them")
        if number > expected:
            count = numbered[-1][0] - first + 1
            raise DataError(
                f"{folder}: {count - len(paths)} of {count} shards are missing, number {expected} "
                f"is the first ({name} is there); copy them, or number the shards anew"
            )


class ShardedRecords:
    """One split in indexed shards. Every read checks that its shard is the one that was indexed."""

    first_label = 0  # as the shards count

    def __init__(
        self, folder: Path, index: Index, class_names: tuple[str, ...], names_file: str
    ) -> None:
        """Without `class_names`, which `names_file` lists, the index names the classes."""
        self.class_names = class_names or index.class_names
        self.labels: Labels = index.label.astype(np.int64)
        self.labels[self.labels >= len(self.class_names)] = UNKNOWN
        self.faults = index.faults
        self._folder = folder
        self._index = index
        self._names_file = names_file
        self._reasons = {fault.number: fault.reason for fault in index.faults}

    def __len__(self) -> int:
        return len(self._index)

    def location(self, number: int) -> RecordLocation:
        return RecordLocation(
            printable(str(self._folder / self._shard(number).name)),
            int(self._index.offset[number]),
            self._index.number_in_file(number),
        )

    def boxes(self, number: int) -> Boxes:
        """Of one image, without reading it."""
        return self._index.boxes_of(number)

    def stamp(self) -> str:
        return self._index.stamp

    def words(self, number: int) -> tuple[str, str]:
        """The name of the image file, and the class in words; empty if unknown."""
        raise NotImplementedError

    def read(self, number: int) -> EncodedImage:
        if self.labels[number] == UNKNOWN:
            raise BadRecordError(self.location(number), self._reason(number))
        try:
            image = self._image(number)
        except BadContentError as error:
            raise BadRecordError(self.location(number), str(error)) from error
        return EncodedImage(image, self.boxes(number))

    def _image(self, number: int) -> bytes | memoryview:
        """The image of a record; BadContentError if a checksum is wrong."""
        raise NotImplementedError

    def _reason(self, number: int) -> str:
        label = int(self._index.label[number])
        if label == UNKNOWN:
            return self._reasons.get(number, "found bad when the shards were indexed")
        first = self.first_label
        return (
            f"label {label + first}, but {self._names_file} names {len(self.class_names)} classes, "
            f"from {first} on"
        )

    def _shard(self, number: int) -> IndexedFile:
        return self._index.files[int(self._index.file[number])]

    def _raw(self, number: int) -> bytes:
        """Opened for each read: a thousand shards are more than a process may keep open."""
        shard = self._shard(number)
        path = self._folder / shard.name
        # A read error may concern this part of the disk only.
        with open_file(os.fsencode(path), partial(self.location, number), {errno.EIO}) as file:
            name = printable(str(path))
            refuse_change(name, FileState(shard.bytes, shard.mtime_ns), FileState.of(file))
            offset, size = int(self._index.offset[number]), int(self._index.size[number])
            return read_range(file, offset, size, name)
