"""WebDataset: a split in tar shards, read in any order through an index.

A tar file has no checksum of its contents, so the index keeps one of each image, and every read is
held against it. Shards for one process or another (`distributed/`) are not needed and not read.
"""

import errno
import os
from pathlib import Path

import google_crc32c
import numpy as np

from convoy.config.user_text import printable
from convoy.data.records.index import Index, IndexedFile
from convoy.data.records.indexing import Notice, Progress, ShardSet, open_index
from convoy.data.records.names import Names
from convoy.data.records.record import UNKNOWN, BadRecordError, Boxes, Record, Spot
from convoy.data.records.tar_metadata import NAME, Metadata, read_metadata
from convoy.data.records.tar_names import read_names
from convoy.data.records.tar_scan import scan_shard
from convoy.data.records.tar_shards import find_tar_shards
from convoy.data.records.unchanged import Look, look, opened, refuse_change, replaced
from convoy.data.source import Labels, Split
from convoy.errors import DataError


class TarShards:
    """One split, in the order (shard name, position). Made by `open_tar_shards`."""

    def __init__(self, folder: Path, index: Index, metadata: Metadata) -> None:
        self.class_names = metadata.class_names or index.class_names
        self.steps_done = metadata.steps_done
        self.faults = index.faults
        self.labels: Labels = index.label.astype(np.int64)
        self.labels[self.labels >= len(self.class_names)] = UNKNOWN
        self._folder = folder
        self._index = index
        self._reasons = {fault.number: fault.reason for fault in index.faults}
        self._names: dict[str, Names] = {}  # of shards, when they are asked for

    def __len__(self) -> int:
        return len(self._index)

    def spot(self, number: int) -> Spot:
        return Spot(
            printable(str(self._folder / self._shard(number).name)),
            int(self._index.offset[number]),
            self._index.number_in_file(number),
        )

    def boxes(self, number: int) -> Boxes:
        """Of one image, without a look at it."""
        return self._index.boxes_of(number)

    def stamp(self) -> str:
        return self._index.stamp

    def file_name(self, number: int) -> str:
        """What the image was called before it came into the shard."""
        shard = self._shard(number).name
        if shard not in self._names:  # two threads at once find the same
            self._names[shard] = read_names(self._folder / shard)
        return self._names[shard][self._index.number_in_file(number)]

    def read(self, number: int) -> Record:
        if self.labels[number] == UNKNOWN:
            raise BadRecordError(self.spot(number), self._reason(number))
        encoded = self._encoded(number)
        if google_crc32c.value(encoded) != self._index.crc[number]:
            raise BadRecordError(
                self.spot(number), "the image is not the one that was indexed: other checksum"
            )
        return Record(encoded, self.boxes(number))

    def _reason(self, number: int) -> str:
        label = int(self._index.label[number])
        if label == UNKNOWN:
            return self._reasons.get(number, "found bad while it was indexed")
        return f"label {label}, but {NAME} names {len(self.class_names)} classes, from 0 on"

    def _shard(self, number: int) -> IndexedFile:
        return self._index.files[int(self._index.file[number])]

    def _encoded(self, number: int) -> bytes:
        """Opened for each read: a thousand shards are more than a process may keep open."""
        shard = self._shard(number)
        path = self._folder / shard.name
        size, offset = int(self._index.size[number]), int(self._index.offset[number])
        try:
            with opened(os.fsencode(path)) as file:
                refuse_change(printable(str(path)), Look(shard.bytes, shard.mtime_ns), look(file))
                encoded = os.pread(file, size, offset)
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
            if error.errno == errno.EIO:  # perhaps of this place only
                raise BadRecordError(self.spot(number), reason) from error
            raise DataError(f"{printable(str(path))}: {reason}") from error
        if len(encoded) < size:
            raise replaced(str(self.spot(number)), f"{size} bytes at first, now {len(encoded)}")
        return encoded


def open_tar_shards(folder: Path, split: Split, notice: Notice, progress: Progress) -> TarShards:
    """One split of a folder with tar shards; they are indexed where that was not done before."""
    metadata = read_metadata(folder, split)
    shards = ShardSet(folder, split, "webdataset", find_tar_shards(folder, split))
    index = open_index(shards, scan_shard, notice, progress)
    check_tar_set(folder, split, metadata, index)
    return TarShards(folder, index, metadata)


def check_tar_set(folder: Path, split: Split, metadata: Metadata, index: Index) -> None:
    """DataError where all shards together are not what they should be."""
    _refuse_other_length(folder, split, metadata, index)
    _refuse_copies(folder, index)


def _refuse_other_length(folder: Path, split: Split, metadata: Metadata, index: Index) -> None:
    """Damage that is seen is left to the policy for bad records: it is counted there."""
    if metadata.length not in (None, len(index)) and not index.faults:
        raise DataError(
            f"{folder}: {len(index)} samples in the {split} shards, but {NAME} says "
            f"{split}_length {metadata.length}; a shard lacks some, or is missing: get them anew, "
            f"or correct {NAME}"
        )


def _refuse_copies(folder: Path, index: Index) -> None:
    """The same images under two names would count twice in every epoch."""
    seen: dict[bytes, str] = {}
    start = 0
    for file in index.files:
        own = slice(start, start + file.records)
        start += file.records
        content = index.size[own].tobytes() + index.crc[own].tobytes()
        if not index.crc[own].any():  # nothing but bad records
            continue
        if content in seen:
            raise DataError(
                f"{folder}: {seen[content]} and {file.name} hold the same {file.records} images; "
                "get one of them anew"
            )
        seen[content] = file.name
