"""ImageNet as TFRecord shards: read by number through an index, written whole or not at all."""

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from convoy.config.user_text import printable
from convoy.data.records import frames
from convoy.data.records.example import BadExampleError
from convoy.data.records.frames import FrameError
from convoy.data.records.index import Index
from convoy.data.records.indexing import Notice, Progress, ShardSet, open_index
from convoy.data.records.manifest import NAME, read_class_names
from convoy.data.records.record import UNKNOWN, BadRecordError, Boxes, Record, Spot
from convoy.data.records.sample import Sample, read_facts, read_image, read_words, write_sample
from convoy.data.records.scan import Findings, ShardScan
from convoy.data.records.shard_maps import ShardMaps
from convoy.data.records.shards import find_shards
from convoy.data.source import Labels, Split
from convoy.errors import DataError


class TfRecords:
    """One split. Every read checks that the file is as it was indexed, and both checksums."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.class_names = read_class_names(folder) or index.class_names
        self.labels: Labels = index.label.astype(np.int64)
        self.labels[self.labels >= len(self.class_names)] = UNKNOWN
        self.faults = index.faults
        self._index = index
        self._maps = ShardMaps(folder, index.files)
        self._reasons = {fault.number: fault.reason for fault in index.faults}

    def __len__(self) -> int:
        return len(self._index)

    def read(self, number: int) -> Record:
        index = self._index
        if self.labels[number] == UNKNOWN:
            raise BadRecordError(self.spot(number), self._reason(number))
        frame = self._maps.take(
            int(index.file[number]), int(index.offset[number]), int(index.size[number])
        )
        try:
            image = read_image(frames.unframed(frame).data)
        except (FrameError, BadExampleError) as error:
            raise BadRecordError(self.spot(number), str(error)) from error
        return Record(image, index.boxes_of(number))

    def _reason(self, number: int) -> str:
        label = int(self._index.label[number])
        if label == UNKNOWN:
            return self._reasons.get(number, "found bad when the shards were indexed")
        return f"label {label + 1}, but {NAME} names {len(self.class_names)} classes, from 1 on"

    def boxes(self, number: int) -> Boxes:
        """Of one image, without a look at it."""
        return self._index.boxes_of(number)

    def stamp(self) -> str:
        return self._index.stamp

    def file_name(self, number: int) -> str:
        """As the record has it; its checksums are left to whoever reads all of it."""
        return self.words(number)[0]

    def words(self, number: int) -> tuple[str, str]:
        """The name of the file, and the class in words."""
        index = self._index
        start, size = int(index.offset[number]), int(index.size[number])
        frame = self._maps.glance(int(index.file[number]), start, size)
        try:
            return read_words(frame[frames.HEAD_BYTES : -frames.FOOT_BYTES].data)
        except BadExampleError as error:
            raise BadRecordError(self.spot(number), str(error)) from error

    def spot(self, number: int) -> Spot:
        path = self._maps.path(int(self._index.file[number]))
        return Spot(
            printable(str(path)),
            int(self._index.offset[number]),
            self._index.number_in_file(number),
        )


def open_tfrecords(folder: Path, split: Split, notice: Notice, progress: Progress) -> TfRecords:
    """The shards in this folder or in `imagenet-data` below it, indexed if they are not yet."""
    paths = find_shards(folder, split)
    shards = ShardSet(paths[0].parent, split, "tfrecord", paths)
    return TfRecords(shards.folder, open_index(shards, scan_shard, notice, progress))


def scan_shard(path: Path) -> ShardScan:
    """Read all of a shard, and what each record is."""
    findings = Findings()
    with path.open("rb", buffering=2**20) as file:
        total = os.fstat(file.fileno()).st_size
        packed = frames.compression(file.read(frames.HEAD_BYTES))
        file.seek(0)
        if packed:
            raise DataError(
                f"{printable(str(path))}: compressed with {packed}, which allows no random access; "
                f"decompress it under the same name"
            )
        if total == 0:
            findings.bad(0, 0, "the shard is empty: a file of 0 bytes")
        for frame in frames.walk(file, total):
            _add(findings, frame)
    return findings.done()


def _add(findings: Findings, frame: frames.Frame) -> None:
    try:
        if frame.reason is not None:
            raise FrameError(frame.reason)
        facts = read_facts(frame.record)
    except (FrameError, BadExampleError) as error:
        findings.bad(frame.offset, frame.size, str(error))
        return
    findings.good(frame.offset, frame.size, facts.label, facts.boxes)
    if facts.synset is not None:
        findings.names.setdefault(facts.label, facts.synset)


def write_shard(path: Path, samples: Iterable[Sample]) -> int:
    """Write the samples and count them; the file gets its name when it is whole."""
    draft = path.with_name(f".{path.name}.tmp-{secrets.token_hex(6)}")
    count = 0
    try:
        with draft.open("xb", buffering=2**20) as file:
            for sample in samples:
                file.writelines(frames.framed(write_sample(sample)))
                count += 1
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return count
