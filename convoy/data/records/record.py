"""The face of every store of encoded images: random access by number, and names for what is bad."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from convoy.data.source import Labels
from convoy.errors import DataError

Form = Literal["folder", "tfrecord", "webdataset"]  # in which images lie on disk
Boxes = npt.NDArray[np.float32]  # (boxes, 4): x1, y1, x2, y2 as shares of width and height

NO_BOXES: Boxes = np.empty((0, 4), np.float32)
MAX_RECORD_BYTES = 2**26  # nothing longer is ever read into memory
UNKNOWN = -1  # the label of a record that is known to be bad


@dataclass(frozen=True)
class Spot:
    """Where a record lies: what a user needs to look at it with other tools."""

    file: str
    offset: int | None = None  # in bytes; None where the file is the record
    number: int | None = None  # within the file, from 0

    def __str__(self) -> str:
        if self.offset is None:
            return self.file
        record = "" if self.number is None else f", record {self.number}"
        return f"{self.file}: byte {self.offset}{record}"


class BadRecordError(DataError):
    """One record that cannot be used, whatever the reason."""

    def __init__(self, spot: Spot, reason: str) -> None:
        super().__init__(f"{spot}: {reason}")
        self.spot = spot
        self.reason = reason


@dataclass(frozen=True)
class Record:
    """One sample as it lies on disk."""

    encoded: bytes | memoryview  # a whole image file: JPEG or another kind
    boxes: Boxes


class Records(Protocol):
    """One split as encoded images. Reading is a pure function of the number, from any thread."""

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def labels(self) -> Labels:
        """Of all records, from 0; UNKNOWN for one that is known to be bad."""

    def __len__(self) -> int: ...

    def read(self, number: int) -> Record:
        """Raises BadRecordError for a record that is bad, DataError for a file that is."""

    def spot(self, number: int) -> Spot: ...
