"""The targets of `tools/fuzz.py`: readers of data files.

A target may raise only the errors it lists. Where a checksum would reject every damaged input, half
of the inputs get a correct checksum.
"""

import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import fuzz_images
import fuzz_tar
import google_crc32c
import numpy as np

from convoy.data.records import index as index_file
from convoy.data.records import tfrecord_format
from convoy.data.records.index import BadIndexError, IndexedFile, write_header
from convoy.data.records.index_builder import ShardScan, join_scans
from convoy.data.records.record import NO_BOXES, BadContentError, Sample
from convoy.data.records.shards import ShardedRecords
from convoy.data.records.tfrecord import read_annotations, read_image, write_sample
from convoy.data.sources.cifar import CIFAR100, PIXEL_BYTES, open_cifar
from convoy.errors import DataError

BOXES = np.array([[0.1, 0.2, 0.5, 0.75], [0, 0, 1, 1]], np.float32)


@dataclass(frozen=True)
class Target:
    """A reader, valid inputs, the errors it may raise, and a function that corrects checksums."""

    seeds: list[bytes]
    read: Callable[[bytes], None]
    errors: tuple[type[Exception], ...]
    repair: Callable[[bytes, Random], bytes] = lambda data, _: data


def targets(scratch: Path) -> dict[str, Target]:
    """All targets by name; readers of files use the scratch folder."""
    return {
        "frame": Target([_shard(), _shard()[:-5], b""], read_shard, (), repair_frame),
        "example": Target(_examples(), read_record, (BadContentError,)),
        "index": Target(_indexes(), read_index, (BadIndexError,), repair_index),
        "tar": Target(fuzz_tar.seeds(), fuzz_tar.read, (BadContentError,), fuzz_tar.repair),
        "header": Target(fuzz_images.jpegs(), fuzz_images.check_header, fuzz_images.ERRORS),
        "image": Target(fuzz_images.images(), fuzz_images.read_image, fuzz_images.ERRORS),
        "cifar": Target(_cifars(), CifarFile(scratch), (DataError,), repair_cifar),
    }


def _sample(label: int, boxes: int) -> Sample:
    image = b"\xff\xd8" + bytes(range(40)) + b"\xff\xd9"
    return Sample(image, label, f"n{label:08}", "a.JPEG", 5, 4, "a thing", BOXES[:boxes])


def _examples() -> list[bytes]:
    return [write_sample(_sample(label, boxes)) for label, boxes in ((0, 0), (999, 1), (70, 2))]


def read_record(data: bytes) -> None:
    """Read an Example in both ways; all values are in range."""
    label, boxes, _ = read_annotations(data)
    image = read_image(data)

    assert len(image) > 0
    assert label >= 0
    assert boxes.shape[1:] == (4,)
    assert ((boxes >= 0) & (boxes <= 1)).all()


def _shard() -> bytes:
    return b"".join(
        b"".join(tfrecord_format.frame_record(record))
        for record in (b"one", b"number two", b"3" * 40)
    )


def read_shard(data: bytes) -> None:
    """The frames are consecutive and cover the whole shard."""
    offset = 0
    for frame in tfrecord_format.iter_frames(io.BytesIO(data), len(data)):
        assert frame.offset == offset
        assert 0 < frame.size <= len(data) - offset
        assert (frame.reason is None) == (len(frame.record) > 0)
        offset += frame.size

    assert offset == len(data)
    tfrecord_format.detect_compression(data)


def repair_frame(data: bytes, rng: Random) -> bytes:
    """Correct the checksum of the first length, and sometimes that of the first record."""
    if len(data) < tfrecord_format.FRAMING_BYTES or rng.random() < 0.5:
        return data
    head = data[:8] + tfrecord_format.masked_crc(data[:8]).to_bytes(4, "little")
    body = data[len(head) :]
    length = int.from_bytes(head[:8], "little")
    if length + 4 > len(body) or rng.random() < 0.5:
        return head + body
    checksum = tfrecord_format.masked_crc(body[:length]).to_bytes(4, "little")
    return head + body[:length] + checksum + body[length + 4 :]


def _indexes() -> list[bytes]:
    """With and without checksums of images, boxes, faults."""
    return [_index(False, ""), _index(True, "cut in the middle")]


def _index(with_checksums: bool, fault: str) -> bytes:
    scan = ShardScan(with_checksums=with_checksums)
    for number in range(6):
        scan.add(10 * number, 10, number % 3, BOXES[:number] if fault else NO_BOXES, number)
    if fault:
        scan.add_bad(60, 7, fault)
    scan.names.update({0: "n00", 2: "n02"})
    file = IndexedFile("train-00000-of-00001", 67, 1_700_000_000_000_000_000, len(scan.label))
    index = join_scans("tfrecord", [(file, scan)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index_file.save(index, path)
        return path.read_bytes()


def read_index(data: bytes) -> None:
    """An accepted index can be read for every record."""
    index = index_file.parse(np.frombuffer(data, np.uint8))
    for number in range(len(index)):
        assert len(ShardedRecords(Path(), index, ()).boxes(number)) <= len(index.boxes)
        assert 0 <= index.index_in_file(number) < index.files[int(index.file[number])].records
    for fault in index.faults:
        assert index.label[fault.number] == -1


def repair_index(data: bytes, rng: Random) -> bytes:
    """Write a header that fits the body, so that later checks are reached."""
    if rng.random() < 0.5:
        return data
    body = data[8 + int.from_bytes(data[:8], "little") :] or data
    records, boxes, has_checksums = (7, 9, True) if b"cut in" in body else (6, 0, False)
    crcs = records * has_checksums
    fixed = 32 * records + 16 * boxes + 4 * crcs
    body = body.ljust(fixed, b"\0")
    header = write_header([records, boxes, crcs, len(body) - fixed], google_crc32c.value(body))
    return header + body


def _cifars() -> list[bytes]:
    record = bytes([3, 77]) + bytes(PIXEL_BYTES)
    return [record, record * 2]


def repair_cifar(data: bytes, rng: Random) -> bytes:
    """Pad to complete records, with labels that may be valid."""
    if rng.random() < 0.5:
        return data
    record = CIFAR100.record_bytes
    records = bytearray(data.ljust(record, b"\0")[: max(1, len(data) // record) * record])
    records[:2] = rng.randrange(22), rng.randrange(102)
    return bytes(records)


class CifarFile:
    """Reads the bytes as a file of CIFAR-100."""

    def __init__(self, scratch: Path) -> None:
        self._folder = scratch
        self._path = scratch / CIFAR100.files["validation"][0]

    def __call__(self, data: bytes) -> None:
        self._path.unlink(
            missing_ok=True
        )  # some file systems flush a file that is truncated and rewritten
        self._path.write_bytes(data)
        source = open_cifar(CIFAR100, self._folder, "validation")
        labels = source.labels(np.arange(len(source)))

        assert len(source) * CIFAR100.record_bytes == len(data)
        assert labels.max() < len(CIFAR100.class_names)
