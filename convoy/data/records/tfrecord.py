"""Images in TFRecord shards: reading by index, scanning for an index, writing.

A record is a tf.train.Example with the reference's fields. Labels start at 1 on disk and at 0
everywhere else.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np

from convoy.data.progress import ProgressCallbacks
from convoy.data.records import tfrecord_format as tf
from convoy.data.records.index import MAX_CLASSES
from convoy.data.records.index_builder import ShardScan, open_index
from convoy.data.records.manifest import MANIFEST_NAME, read_class_names
from convoy.data.records.record import (
    NO_BOXES,
    BadContentError,
    Boxes,
    Sample,
    drop_empty_boxes,
    locate_errors,
)
from convoy.data.records.shards import ShardedRecords, find_shards
from convoy.data.source import Split
from convoy.errors import DataError
from convoy.files import atomic_path
from convoy.text import printable

Value = TypeVar("Value")

ENCODED, LABEL, SYNSET = "image/encoded", "image/class/label", "image/class/synset"
_BOX_SIDES = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_ANNOTATION_FIELDS = frozenset((ENCODED, LABEL, SYNSET, *_BOX_SIDES))
_FILENAME, _TEXT = "image/filename", "image/class/text"
_MAX_NAME_BYTES = 200
_MAX_CLASS_TEXT_BYTES = 1000


def read_annotations(record: tf.BytesLike) -> tuple[int, Boxes, str | None]:
    """Read label (from 0), boxes and synset; raise BadContentError for a bad field or no image."""
    features = tf.Features(record, _ANNOTATION_FIELDS)
    _image_span(features)
    label = _single_value(LABEL, features.int64_list(LABEL))
    if not 1 <= label <= MAX_CLASSES:
        raise BadContentError(f"the field {LABEL} is {label}, but labels start at 1")
    synset = _single_text(features, SYNSET, _MAX_NAME_BYTES, "replace")
    return label - 1, _boxes(features), None if synset is None else printable(synset)


def read_image(record: tf.BytesLike) -> memoryview:
    """Return the encoded image, without a copy."""
    start, end = _image_span(tf.Features(record, {ENCODED}))
    return memoryview(record)[start:end]


def _single_text(features: tf.Features, name: str, max_bytes: int, errors: str) -> str | None:
    """Return at most `max_bytes` of the value; None unless there is exactly one."""
    values = features.bytes_list(name)
    if len(values) != 1:
        return None
    start, end = values[0]
    return str(features.data[start : min(end, start + max_bytes)], "utf-8", errors)


def _image_span(features: tf.Features) -> tf.Span:
    start, end = _single_value(ENCODED, features.bytes_list(ENCODED))
    if start == end:
        raise BadContentError(f"the field {ENCODED} is empty")
    return start, end


def _single_value(name: str, values: list[Value]) -> Value:
    if len(values) != 1:
        raise BadContentError(f"the field {name} has {len(values)} values, not one")
    return values[0]


def _boxes(features: tf.Features) -> Boxes:
    """Read boxes, clipped to the image; drop boxes outside it."""
    sides = [features.float_list(name) for name in _BOX_SIDES]
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
    return drop_empty_boxes(boxes.clip(0, 1))


def write_sample(sample: Sample) -> bytes:
    """Encode a sample as an Example; the same sample always gives the same bytes."""
    sides = zip(_BOX_SIDES, np.asarray(sample.boxes, np.float32).T, strict=True)
    return tf.write_example(
        {
            ENCODED: tf.bytes_list(sample.encoded),
            LABEL: tf.int64_list(sample.label + 1),
            SYNSET: tf.bytes_list(sample.synset.encode()),
            _TEXT: tf.bytes_list(sample.text.encode("utf-8", "surrogateescape")),
            _FILENAME: tf.bytes_list(sample.filename.encode("utf-8", "surrogateescape")),
            "image/format": tf.bytes_list(b"PNG" if sample.image_format == "png" else b"JPEG"),
            "image/colorspace": tf.bytes_list(b"RGB"),
            "image/channels": tf.int64_list(3),
            "image/height": tf.int64_list(sample.height),
            "image/width": tf.int64_list(sample.width),
            "image/object/bbox/label": tf.int64_list(*[sample.label + 1] * len(sample.boxes)),
            **{name: tf.float_list(*side.tolist()) for name, side in sides},
        }
    )


class TfRecords(ShardedRecords):
    """One split in TFRecord shards. Every read verifies both checksums."""

    first_label = 1
    class_names_file = MANIFEST_NAME

    def _read_image(self, index: int) -> memoryview:
        return read_image(tf.parse_frame(self._raw(index)))

    def filename_and_text(self, index: int) -> tuple[str, str]:
        record = self._raw(index)[tf.HEADER_BYTES : -tf.FOOTER_BYTES]
        with locate_errors(self, index):
            features = tf.Features(record, {_FILENAME, _TEXT})
            filename, text = (
                _single_text(features, name, _MAX_CLASS_TEXT_BYTES, "surrogateescape") or ""
                for name in (_FILENAME, _TEXT)
            )
            return filename, text


def open_tfrecords(folder: Path, split: Split, callbacks: ProgressCallbacks) -> TfRecords:
    """Open one split, indexing it if necessary."""
    index = open_index(find_shards(folder, split, "tfrecord"), scan_shard, callbacks)
    return TfRecords(folder, index, read_class_names(folder))


def scan_shard(path: Path) -> ShardScan:
    scan = ShardScan()
    with path.open("rb", buffering=2**20) as file:
        total = os.fstat(file.fileno()).st_size
        compression = tf.detect_compression(file.read(tf.HEADER_BYTES))
        file.seek(0)
        if compression:
            raise DataError(
                f"{printable(str(path))}: compressed with {compression}, which does not allow "
                "random access; decompress it under the same name"
            )
        if total == 0:
            scan.add_bad(0, 0, "the shard is empty (0 bytes)")
        for frame in tf.iter_frames(file, total):
            try:
                if frame.reason is not None:
                    raise BadContentError(frame.reason)
                label, boxes, synset = read_annotations(frame.record)
            except BadContentError as error:
                scan.add_bad(frame.offset, frame.size, str(error))
                continue
            scan.add(frame.offset, frame.size, label, boxes)
            if synset is not None:
                scan.names.setdefault(label, synset)
    return scan


def write_shard(path: Path, samples: Iterable[Sample]) -> int:
    """Write samples and return their count; the file gets its final name when it is complete."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("xb", buffering=2**20) as file:
        for sample in samples:
            file.writelines(tf.frame_record(write_sample(sample)))
            count += 1
    return count
