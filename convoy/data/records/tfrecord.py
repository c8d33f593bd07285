"""Images in TFRecord shards: read by number, scanned for an index, written.

A record is a tf.train.Example with the reference's fields. Labels count from 1 on disk and from 0
everywhere else.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from convoy.data.progress import Notice, Progress
from convoy.data.records import tfrecord_format as frames
from convoy.data.records.index import MOST_CLASSES, Index
from convoy.data.records.indexing import ShardScan, open_index
from convoy.data.records.ledger import BadRecordError
from convoy.data.records.manifest import NAME, read_class_names
from convoy.data.records.record import NO_BOXES, BadContentError, Boxes, Sample, with_area
from convoy.data.records.shards import ShardedRecords, find_shards
from convoy.data.records.tfrecord_format import (
    Features,
    Raw,
    Span,
    byte_strings,
    floats,
    integers,
    write_example,
)
from convoy.data.source import Split
from convoy.errors import DataError
from convoy.files import atomic_path
from convoy.text import printable

Value = TypeVar("Value")

ENCODED, LABEL, SYNSET = "image/encoded", "image/class/label", "image/class/synset"
_BOX_SIDES = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_FACTS = frozenset((ENCODED, LABEL, SYNSET, *_BOX_SIDES))
_IMAGE = frozenset((ENCODED,))
_FILENAME, _TEXT = "image/filename", "image/class/text"
_WORDS = frozenset((_FILENAME, _TEXT))
_MOST_NAME_BYTES = 200
_MOST_WORD_BYTES = 1000
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known of a sample without its image."""

    label: int  # from 0
    boxes: Boxes
    synset: str | None


def read_facts(record: Raw) -> Facts:
    """Everything but the image, which must be there; BadContentError names the bad field."""
    features = Features(record, _FACTS)
    _one_image(features)
    label = _one(LABEL, features.integers(LABEL))
    if not 1 <= label <= MOST_CLASSES:
        raise BadContentError(f"the field {LABEL} is {label}, labels count from 1")
    synset = _text(features, SYNSET, _MOST_NAME_BYTES)
    name = None if synset is None else printable(synset.decode("utf-8", "replace"))
    return Facts(label - 1, _boxes(features), name)


def read_image(record: Raw) -> memoryview:
    """The encoded image, not copied."""
    start, end = _one_image(Features(record, _IMAGE))
    return memoryview(record)[start:end]


def read_words(record: Raw) -> tuple[str, str]:
    """The name of the file that the image was in, and its class in words; empty where unknown."""
    features = Features(record, _WORDS)
    words = [_text(features, name, _MOST_WORD_BYTES) or b"" for name in (_FILENAME, _TEXT)]
    filename, text = (word.decode("utf-8", "surrogateescape") for word in words)
    return filename, text


def _text(features: Features, name: str, most_bytes: int) -> bytes | None:
    """The beginning of the value; None if there is not exactly one."""
    values = features.byte_strings(name)
    if len(values) != 1:
        return None
    start, end = values[0]
    return bytes(features.data[start : min(end, start + most_bytes)])


def _one_image(features: Features) -> Span:
    start, end = _one(ENCODED, features.byte_strings(ENCODED))
    if start == end:
        raise BadContentError(f"the field {ENCODED} is empty")
    return start, end


def _one(name: str, values: list[Value]) -> Value:
    if len(values) != 1:
        raise BadContentError(f"the field {name} has {len(values)} values, not one")
    return values[0]


def _boxes(features: Features) -> Boxes:
    """Clipped to the image, without those outside of it."""
    sides = [features.floats(name) for name in _BOX_SIDES]
    if not any(sides):
        return NO_BOXES
    if len({len(side) for side in sides}) > 1:
        counts = ", ".join(
            f"{name.rsplit('/')[-1]} {len(side)}"
            for name, side in zip(_BOX_SIDES, sides, strict=True)
        )
        raise BadContentError(f"the fields image/object/bbox/… differ in length: {counts}")
    boxes = np.array(sides, np.float32).T
    if not np.isfinite(boxes).all() or (boxes[:, :2] > boxes[:, 2:]).any():
        raise BadContentError("the fields image/object/bbox/… contain an invalid box")
    return with_area(boxes.clip(0, 1))


def write_sample(sample: Sample) -> bytes:
    """The Example of a sample, always the same bytes for the same sample."""
    kind = b"PNG" if sample.encoded.startswith(_PNG) else b"JPEG"
    sides = zip(_BOX_SIDES, np.asarray(sample.boxes, np.float32).T, strict=True)
    return write_example(
        {
            ENCODED: byte_strings(sample.encoded),
            LABEL: integers(sample.label + 1),
            SYNSET: byte_strings(sample.synset.encode()),
            _TEXT: byte_strings(sample.text.encode("utf-8", "surrogateescape")),
            _FILENAME: byte_strings(sample.filename.encode("utf-8", "surrogateescape")),
            "image/format": byte_strings(kind),
            "image/colorspace": byte_strings(b"RGB"),
            "image/channels": integers(3),
            "image/height": integers(sample.height),
            "image/width": integers(sample.width),
            "image/object/bbox/label": integers(*[sample.label + 1] * len(sample.boxes)),
            **{name: floats(*side.tolist()) for name, side in sides},
        }
    )


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
            try:
                if frame.reason is not None:
                    raise BadContentError(frame.reason)
                facts = read_facts(frame.record)
            except BadContentError as error:
                scan.add_bad(frame.offset, frame.size, str(error))
                continue
            scan.add(frame.offset, frame.size, facts.label, facts.boxes)
            if facts.synset is not None:
                scan.names.setdefault(facts.label, facts.synset)
    return scan


def write_shard(path: Path, samples: Iterable[Sample]) -> int:
    """Write the samples and count them; the file gets its name when it is complete."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("xb", buffering=2**20) as file:
        for sample in samples:
            file.writelines(frames.framed(write_sample(sample)))
            count += 1
    return count
