"""Where every record of a split lies, and what is known of it without reading its image."""

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from convoy.data.records.record import Boxes

Kind = Literal["tfrecord", "webdataset"]
Numbers = npt.NDArray[np.int64]

MOST_CLASSES = 2**17  # ImageNet-21k has 21,843
MOST_FAULTS = 10_000  # that keep their reason; of all others only the label tells


@dataclass(frozen=True)
class IndexedFile:
    """A shard as it was when it was scanned."""

    name: str
    bytes: int
    mtime_ns: int
    records: int


@dataclass(frozen=True)
class Fault:
    """A record that cannot be used: its number in the split, and where its file holds it."""

    number: int
    file: str
    offset: int
    reason: str


@dataclass(frozen=True, eq=False)
class Index:
    """One split. Bad records have their entries too, so that the numbers of others never shift."""

    kind: Kind
    files: tuple[IndexedFile, ...]
    class_names: tuple[str, ...]
    faults: tuple[Fault, ...]
    file: npt.NDArray[np.uint32]  # (records,), like all below but `boxes`
    offset: Numbers  # of a whole TFRecord frame, or of the image in a tar
    size: Numbers
    label: npt.NDArray[np.int32]  # from 0, or UNKNOWN
    crc: npt.NDArray[np.uint32]  # CRC32C of the images; empty where the shards have their own
    box_end: Numbers  # the boxes of a record lie between the end of the one before and its own
    boxes: Boxes

    def __len__(self) -> int:
        return len(self.label)

    def boxes_of(self, number: int) -> Boxes:
        start = int(self.box_end[number - 1]) if number else 0
        return self.boxes[start : int(self.box_end[number])]

    @property
    def stamp(self) -> str:
        """What tells these shards from others in their place."""
        return hashlib.sha256(repr(self.files).encode()).hexdigest()

    def number_in_file(self, number: int) -> int:
        """Its position within its own shard, from 0."""
        return number - int(np.searchsorted(self.file, self.file[number]))
