"""Images in TFRecord shards: read by number, scanned for an index, written."""

import os
from collections.abc import Iterable
from pathlib import Path

from convoy.data.progress import Notice, Progress
from convoy.data.records import tfrecord_format as frames
from convoy.data.records.index import Index
from convoy.data.records.indexing import ShardScan, open_index
from convoy.data.records.manifest import NAME, read_class_names
from convoy.data.records.record import BadContentError, BadRecordError
from convoy.data.records.sample import Sample, read_facts, read_image, read_words, write_sample
from convoy.data.records.shards import ShardedRecords, find_shards
from convoy.data.source import Split
from convoy.errors import DataError
from convoy.files import atomic_path
from convoy.text import printable


class TfRecords(ShardedRecords):
    """One split. Every read checks both checksums."""

    first_label = 1

    def __init__(self, folder: Path, index: Index, class_names: tuple[str, ...]) -> None:
        super().__init__(folder, index, class_names, NAME)

    def _image(self, number: int) -> memoryview:
        return read_image(frames.unframed(self._raw(number)))

    def words(self, number: int) -> tuple[str, str]:
        record = self._raw(number)[frames.HEAD_BYTES : -frames.FOOT_BYTES]
        try:
            return read_words(record)
        except BadContentError as error:
            raise BadRecordError(self.location(number), str(error)) from error


def open_tfrecords(folder: Path, split: Split, notice: Notice, progress: Progress) -> TfRecords:
    """One split, indexed if it is not yet."""
    shards = find_shards(folder, split, "tfrecord")
    index = open_index(shards, scan_shard, notice, progress)
    return TfRecords(folder, index, read_class_names(folder))


def scan_shard(path: Path) -> ShardScan:
    """Read all of a shard, and what each record is."""
    scan = ShardScan()
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
            scan.add_bad(0, 0, "the shard is empty: a file of 0 bytes")
        for frame in frames.walk(file, total):
            _add(scan, frame)
    return scan


def _add(scan: ShardScan, frame: frames.TfRecordFrame) -> None:
    try:
        if frame.reason is not None:
            raise BadContentError(frame.reason)
        facts = read_facts(frame.record)
    except BadContentError as error:
        scan.add_bad(frame.offset, frame.size, str(error))
        return
    scan.add(frame.offset, frame.size, facts.label, facts.boxes)
    if facts.synset is not None:
        scan.names.setdefault(facts.label, facts.synset)


def write_shard(path: Path, samples: Iterable[Sample]) -> int:
    """Write the samples and count them; the file gets its name when it is complete."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("xb", buffering=2**20) as file:
        for sample in samples:
            file.writelines(frames.framed(write_sample(sample)))
            count += 1
    return count
