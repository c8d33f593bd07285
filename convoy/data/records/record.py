"""Encoded images by index: the interface of every record store, and what all stores share."""

import os
from array import array
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from convoy.data.records.ledger import BadRecordError, RecordLocation
from convoy.data.source import Labels
from convoy.errors import DataError
from convoy.text import printable

DataFormat = Literal["folder", "tfrecord", "webdataset"]  # how images are stored
Boxes = npt.NDArray[np.float32]  # (boxes, 4): x1, y1, x2, y2 as fractions of width and height

NO_BOXES: Boxes = np.empty((0, 4), np.float32)
MAX_RECORD_BYTES = 2**26  # longer records are never read into memory
UNKNOWN_LABEL = -1  # the label of a record that is known to be bad


class BadContentError(ValueError):
    """The reason why bytes are not a usable record; the caller adds the location."""


@dataclass(frozen=True)
class EncodedImage:
    """One sample as stored on disk."""

    encoded: bytes | memoryview  # a complete image file: JPEG or another format
    boxes: Boxes


class Records(Protocol):
    """One split as encoded images. Reading is a pure function of the index, from any thread."""

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def labels(self) -> Labels:
        """Labels of all records, from 0; UNKNOWN_LABEL for a record known to be bad."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> EncodedImage:
        """Read one record; raise BadRecordError for a bad record, DataError for a bad file."""

    def location(self, index: int) -> RecordLocation: ...


@contextmanager
def locate_errors(records: Records, index: int) -> Iterator[None]:
    """Turn bad content into a BadRecordError with the location of the record."""
    try:
        yield
    except BadContentError as error:
        raise BadRecordError(records.location(index), str(error)) from error


class PackedNames:
    """File names by index, packed into one block: a million names are not a million objects."""

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

    def __getitem__(self, index: int) -> bytes:
        start = self._ends[index - 1] if index else 0
        return bytes(self._block[start : self._ends[index]])

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))


@contextmanager
def reading_errors(path: Path | bytes, action: str = "read") -> Iterator[None]:
    """Turn an OSError in this block into a DataError with the path."""
    try:
        yield
    except OSError as error:
        name = printable(os.fsdecode(path))
        raise DataError(f"{name}: cannot be {action}: {error.strerror}") from error


@contextmanager
def open_file(
    path: bytes, locate: Callable[[], RecordLocation], bad_record_errnos: Container[int]
) -> Iterator[int]:
    """Open a file for reading, without blocking if it is a pipe.

    Errors listed in `bad_record_errnos` concern one record; all others end the run.
    """
    with reading_errors(path):
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                yield file
            finally:
                os.close(file)
        except OSError as error:
            if error.errno in bad_record_errnos:
                reason = f"cannot be read: {error.strerror}"
                raise BadRecordError(locate(), reason) from error
            raise


def read_range(file: int, offset: int, size: int, name: str) -> bytes:
    """Read `size` bytes at `offset`; raise DataError if the file has become shorter."""
    data = os.pread(file, size, offset)
    if len(data) < size:
        raise _replaced_error(name, f"{size} bytes at first, {len(data)} now")
    return data


def check_unchanged(name: str, size: int, mtime_ns: int, now: os.stat_result) -> None:
    """Raise DataError, which ends the run, if the file has changed."""
    if size != now.st_size:
        raise _replaced_error(name, f"{size} bytes at first, {now.st_size} now")
    if mtime_ns != now.st_mtime_ns:
        raise _replaced_error(
            name, f"modification time {mtime_ns} ns at first, {now.st_mtime_ns} ns now"
        )


def _replaced_error(name: str, change: str) -> DataError:
    return DataError(
        f"{name}: changed during the run: {change}; keep the data unchanged during a run, "
        "then resume"
    )


class ReplacementSampler:
    """Labels of all records, and the records that may replace a bad one."""

    def __init__(self, labels: Labels) -> None:
        self._known = self.labels = labels
        good = np.flatnonzero(labels != UNKNOWN_LABEL)
        if len(good) == 0:
            raise DataError("no usable records")
        if len(good) < len(labels):  # bad records take the label of the next good one, cyclically
            following = np.searchsorted(good, np.arange(len(labels)))
            self.labels = labels[good[following % len(good)]]

    def candidates(self, index: int) -> Iterator[int]:
        """Yield records of the same class, in the order they are tried."""
        same = np.flatnonzero(self._known == self.labels[index])
        start = int(np.searchsorted(same, index, side="right"))
        for candidate in np.roll(same, -start).tolist():
            if candidate != index:
                yield candidate


class CachedRecords:
    """Cache the records that fit into memory, so that each is read from disk once."""

    def __init__(self, records: Records, max_bytes: float, max_records: int) -> None:
        self.class_names, self.labels = records.class_names, records.labels
        self._records = records
        self._max_bytes = max_bytes
        self._max_records = max_records
        self._cached: dict[int, EncodedImage] = {}
        self._lock = Lock()
        self.cached_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def location(self, index: int) -> RecordLocation:
        return self._records.location(index)

    def read(self, index: int) -> EncodedImage:
        if index in self._cached:
            return self._cached[index]
        image = self._records.read(index)
        with self._lock:
            total = self.cached_bytes + len(image.encoded)
            fits = total <= self._max_bytes and len(self._cached) < self._max_records
            if fits and index not in self._cached:
                # Copy the image: a view would keep the entire record alive.
                self._cached[index] = EncodedImage(bytes(image.encoded), image.boxes)
                self.cached_bytes = total
        return image


@dataclass(frozen=True, eq=False)
class Sample:
    """One image with all of its annotations, as written to a shard."""

    encoded: bytes
    label: int  # from 0
    synset: str  # the class name, as used for its folder
    filename: str
    width: int
    height: int
    text: str = ""  # description of the class
    boxes: Boxes = field(default_factory=lambda: NO_BOXES)
    image_format: str = "jpeg"  # as named by `ImageHeader`


_SLACK = 0.01  # tolerated beyond 0 … 1, from rounding; clipped


def invalid_boxes(boxes: Boxes) -> Iterator[tuple[int, str]]:
    """Yield the row of each invalid box, with the reason."""
    inside = np.abs(boxes - 0.5) <= 0.5 + _SLACK  # false for NaN
    is_ordered = boxes[:, :2] <= boxes[:, 2:]
    for row in np.flatnonzero(~(inside.all(axis=1) & is_ordered.all(axis=1))).tolist():
        corners = ", ".join(f"{corner:g}" for corner in boxes[row])
        is_fraction = inside[row].all()
        rule = "x1 ≤ x2 and y1 ≤ y2" if is_fraction else "fractions of width and height, 0 … 1"
        yield row, f"{corners}: must be {rule}"


def drop_empty_boxes(boxes: Boxes) -> Boxes:
    """Drop boxes without an area, which come from rounding or from the edge of the image."""
    return boxes[(boxes[:, :2] < boxes[:, 2:]).all(axis=1)]
