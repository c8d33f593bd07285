"""A sample of ImageNet as a tf.train.Example with the reference's fields.

Labels count from 1 on disk and from 0 everywhere else.
"""

from dataclasses import dataclass, field

import numpy as np

from convoy.data.records.boxes import with_area
from convoy.data.records.index import MOST_CLASSES
from convoy.data.records.record import NO_BOXES, BadContentError, Boxes
from convoy.data.records.tfrecord_format import (
    Features,
    Raw,
    byte_strings,
    floats,
    integers,
    write_example,
)
from convoy.text import printable

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
class Sample:
    """Everything that is written about one image."""

    encoded: bytes
    label: int  # from 0
    synset: str  # the name of the class, as its folder has it
    filename: str
    width: int
    height: int
    text: str = ""  # the class in words
    boxes: Boxes = field(default_factory=lambda: NO_BOXES)


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
    return Facts(_label(features), _boxes(features), _synset(features, record))


def read_image(record: Raw) -> memoryview:
    """The encoded image, not copied."""
    start, end = _one_image(Features(record, _IMAGE))
    return memoryview(record)[start:end]


def read_words(record: Raw) -> tuple[str, str]:
    """The name of the file that the image was in, and its class in words; empty where unknown."""
    features = Features(record, _WORDS)
    return _word(features, _FILENAME, record), _word(features, _TEXT, record)


def _word(features: Features, name: str, record: Raw) -> str:
    values = features.byte_strings(name)
    start, end = values[0] if len(values) == 1 else (0, 0)
    text = bytes(record[start : min(end, start + _MOST_WORD_BYTES)])
    return text.decode("utf-8", "surrogateescape")


def _one_image(features: Features) -> tuple[int, int]:
    images = features.byte_strings(ENCODED)
    if len(images) != 1:
        raise BadContentError(f"the field {ENCODED} has {len(images)} values, not one")
    start, end = images[0]
    if start == end:
        raise BadContentError(f"the field {ENCODED} is empty")
    return start, end


def _label(features: Features) -> int:
    labels = features.integers(LABEL)
    if len(labels) != 1:
        raise BadContentError(f"the field {LABEL} has {len(labels)} values, not one")
    if not 1 <= labels[0] <= MOST_CLASSES:
        raise BadContentError(f"the field {LABEL} is {labels[0]}, labels count from 1")
    return labels[0] - 1


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


def _synset(features: Features, record: Raw) -> str | None:
    names = features.byte_strings(SYNSET)
    if len(names) != 1:
        return None
    start, end = names[0]
    return printable(str(record[start : min(end, start + _MOST_NAME_BYTES)], "utf-8", "replace"))


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
