"""Encoded images by number: the interface of every store, and what all stores share."""

import os
from array import array
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from convoy.data.records.ledger import BadRecordError, RecordLocation
from convoy.data.source import Labels
from convoy.errors import DataError
from convoy.text import printable

Form = Literal["folder", "tfrecord", "webdataset"]  # in which images are stored
Boxes = npt.NDArray[np.float32]  # (boxes, 4): x1, y1, x2, y2 as shares of width and height

NO_BOXES: Boxes = np.empty((0, 4), np.float32)
MAX_RECORD_BYTES = 2**26  # nothing longer is ever read into memory
UNKNOWN = -1  # the label of a record that is known to be bad


class BadContentError(ValueError):
    """Why bytes are not a usable record; the caller knows where they are."""


@dataclass(frozen=True)
class EncodedImage:
    """One sample as it is on disk."""

    encoded: bytes | memoryview  # a whole image file: JPEG or another format
    boxes: Boxes


class Records(Protocol):
    """One split as encoded images. Reading is a pure function of the number, from any thread."""

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def labels(self) -> Labels:
        """Of all records, from 0; UNKNOWN for one that is known to be bad."""

    def __len__(self) -> int: ...

    def read(self, number: int) -> EncodedImage:
        """Raises BadRecordError for a record that is bad, DataError for a file that is."""

    def location(self, number: int) -> RecordLocation: ...


class PackedNames:
    """File names by number, end to end in one block: a million names are not a million objects."""

    def __init__(self, names: Iterable[bytes] = ()) -> None:
        self._block = bytearray()
        self._ends = array("q")
        for name in names:
            self.append(name)

    def append(self, name: bytes) -> None:
        self._block += name
        self._ends.append(len(self._block))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        start = self._ends[number - 1] if number else 0
        return bytes(self._block[start : self._ends[number]])

    def __iter__(self) -> Iterator[bytes]:
        return (self[number] for number in range(len(self)))


class FileState(NamedTuple):
    """What distinguishes a file from another one in its place."""

    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, file: int) -> "FileState":
        status = os.fstat(file)
        return cls(status.st_size, status.st_mtime_ns)


@contextmanager
def open_file(
    path: bytes, locate: Callable[[], RecordLocation], bad: Container[int]
) -> Iterator[int]:
    """A file to read from. A pipe in its place is not waited for.

    System errors in `bad` concern one record, all others end the run.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            yield file
        finally:
            os.close(file)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        if error.errno in bad:
            raise BadRecordError(locate(), reason) from error
        raise DataError(f"{printable(os.fsdecode(path))}: {reason}") from error


def read_range(file: int, offset: int, size: int, name: str) -> bytes:
    """All of these bytes; DataError if the file has become shorter."""
    data = os.pread(file, size, offset)
    if len(data) < size:
        raise _replaced(name, f"{size} bytes at first, now {len(data)}")
    return data


def refuse_change(name: str, first: FileState, now: FileState) -> None:
    """The same file as before, or the end of the run."""
    if first.bytes != now.bytes:
        raise _replaced(name, f"{first.bytes} bytes at first, now {now.bytes}")
    if first.mtime_ns != now.mtime_ns:
        raise _replaced(
            name, f"written at {first.mtime_ns} ns of the clock at first, now at {now.mtime_ns}"
        )


def _replaced(name: str, change: str) -> DataError:
    return DataError(
        f"{name}: replaced during the run: {change}; leave the data alone while it is used, "
        "then resume"
    )


class StandIns:
    """The labels of all positions, and which records may replace a bad one."""

    def __init__(self, known: Labels) -> None:
        """`known` is UNKNOWN where a record is so bad that its class cannot be read."""
        self._known = self.labels = known
        good = np.flatnonzero(known != UNKNOWN)
        if len(good) == 0:
            raise DataError("none of the records can be used")
        if len(good) < len(known):  # others take the label of the next good one, cyclically
            following = np.searchsorted(good, np.arange(len(known)))
            self.labels = known[good[following % len(good)]]

    def after(self, number: int) -> Iterator[int]:
        """Records of the same class, in the order in which they are tried."""
        same = np.flatnonzero(self._known == self.labels[number])
        start = int(np.searchsorted(same, number, side="right"))
        for candidate in np.roll(same, -start).tolist():
            if candidate != number:
                yield candidate


class CachedRecords:
    """The same records; each that fits into the cache is read from disk once."""

    def __init__(self, records: Records, most_bytes: float, most_records: int) -> None:
        self.class_names, self.labels = records.class_names, records.labels
        self._records = records
        self._most_bytes = most_bytes
        self._most_records = most_records
        self._cached: dict[int, EncodedImage] = {}
        self._lock = Lock()
        self.cached_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def location(self, number: int) -> RecordLocation:
        return self._records.location(number)

    def read(self, number: int) -> EncodedImage:
        cached = self._cached.get(number)
        if cached is not None:
            return cached
        image = self._records.read(number)
        size = len(image.encoded)
        with self._lock:
            full = self.cached_bytes + size > self._most_bytes
            if full or len(self._cached) >= self._most_records:
                return image
            if number not in self._cached:
                # A copy of the image alone: a view would keep the whole record.
                self._cached[number] = EncodedImage(bytes(image.encoded), image.boxes)
                self.cached_bytes += size
        return self._cached[number]


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


_SLACK = 0.01  # beyond 0 … 1, from rounding; it is cut off


def box_problems(boxes: Boxes) -> Iterator[tuple[int, str]]:
    """The number of each invalid box, with the reason."""
    inside = np.abs(boxes - 0.5) <= 0.5 + _SLACK  # false for NaN
    upright = boxes[:, :2] <= boxes[:, 2:]
    for row in np.flatnonzero(~(inside.all(axis=1) & upright.all(axis=1))).tolist():
        corners = ", ".join(f"{corner:g}" for corner in boxes[row])
        is_share = inside[row].all()
        rule = "x1 ≤ x2 and y1 ≤ y2" if is_share else "shares of width and height, 0 … 1"
        yield row, f"{corners}: must be {rule}"


def with_area(boxes: Boxes) -> Boxes:
    """Without those that rounding, or the edge of the image, made flat."""
    return boxes[(boxes[:, :2] < boxes[:, 2:]).all(axis=1)]
