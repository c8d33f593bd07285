"""The file of object boxes beside image folders: `name,x1,y1,x2,y2`, as shares of width and height.

A million rows stay compact. A row is found by a checksum of its name, then checked by the name.
"""

import zlib
from array import array
from bisect import insort
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from convoy.data.records.record import NO_BOXES, Boxes, PackedNames
from convoy.errors import ConfigError, DataError
from convoy.text import printable, shown

FILE_NAME = "imagenet_2012_bounding_boxes.csv"

_MOST_BYTES = 2**29  # the official file has about 70 MB
_MOST_PROBLEMS = 5
_SLACK = 0.01  # beyond 0 … 1, from rounding; it is cut off
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BoxTable:
    """The boxes of files by name, in the order of their rows."""

    def __init__(self, names: PackedNames, boxes: Boxes) -> None:
        keys = np.fromiter(map(zlib.crc32, names), np.uint32, len(names))
        self._order = np.argsort(keys, kind="stable").astype(np.uint32)
        self._keys = keys[self._order]
        self._names, self._boxes = names, boxes

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, name: bytes) -> Boxes:
        """All boxes of one file; none where it has no row."""
        key = np.uint32(zlib.crc32(name))
        first, end = (np.searchsorted(self._keys, key, side) for side in ("left", "right"))
        rows = [row for row in self._order[first:end].tolist() if self._names[row] == name]
        return with_area(self._boxes[rows]) if rows else NO_BOXES


class _Rows:
    """What has been read so far, and what is wrong with it."""

    def __init__(self) -> None:
        self.names = PackedNames()
        self.corners = array("f")
        self.lines = array("I")  # line numbers of the rows
        self.bad = 0
        self.problems: list[tuple[int, str]] = []  # the first of them, by line

    def add(self, line: int, text: bytes) -> None:
        try:
            name, x1, y1, x2, y2 = text.split(b",")
            corners = (float(x1), float(y1), float(x2), float(y2))
        except ValueError:
            if line > 1:  # the first may be the names of the columns
                self.add_problem(line, f"{_shown(text)} is no name with four numbers")
            return
        self.names.append(name)
        self.corners.extend(corners)
        self.lines.append(line)

    def table(self) -> BoxTable:
        """All rows; boxes that are not inside the image are problems."""
        boxes = np.frombuffer(self.corners, np.float32).reshape(-1, 4)
        for row, reason in box_problems(boxes):
            self.add_problem(self.lines[row], reason)
        return BoxTable(self.names, boxes.clip(0, 1))

    def add_problem(self, line: int, reason: str) -> None:
        self.bad += 1
        insort(self.problems, (line, f"line {line}: {reason}"))
        del self.problems[_MOST_PROBLEMS:]


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


def read_boxes(path: Path) -> BoxTable:
    """All rows of the file; every bad one is counted and the first ones are named."""
    rows = _Rows()
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise ConfigError(f"{path}: {size} bytes, at most {_MOST_BYTES} are read")
        with path.open("rb") as file:
            for line, text in enumerate(file, start=1):
                if text := text.removeprefix(_BYTE_ORDER_MARK).strip():
                    rows.add(line, text)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    table = rows.table()
    if rows.bad:
        more = rows.bad - len(rows.problems)
        raise ConfigError(
            f"{printable(str(path))}: {'; '.join(reason for _, reason in rows.problems)}"
            f"{f'; and {more} more' if more else ''}. Rows are file name, x1, y1, x2, y2; correct "
            "them, or train without the file"
        )
    return table


def _shown(text: bytes) -> str:
    return shown(text.decode("utf-8", errors="replace"))
