"""Parts of an index from a file of unknown origin → an Index, once they all fit each other."""

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from convoy.data.records.index import MOST_CLASSES, MOST_FAULTS, Fault, Index, IndexedFile
from convoy.data.records.record import UNKNOWN

Arrays = Mapping[str, npt.NDArray[Any]]  # by the names of Index, their types and lengths right

_KINDS = ("tfrecord", "webdataset")


class BadIndexError(ValueError):
    """Bytes that are no usable index, and why."""


def is_count(value: object) -> TypeGuard[int]:
    """A whole number, small enough that no sum of sizes leaves 64 bits."""
    return type(value) is int and 0 <= value < 2**48


def checked(arrays: Arrays, table: Mapping[str, Any]) -> Index:
    """The index that arrays and names make together."""
    if table["kind"] not in _KINDS:
        raise BadIndexError("it is of no known kind")
    files = _files(table["files"])
    names = _class_names(table["class_names"])
    _check_places(arrays, files)
    _check_labels(arrays["label"], len(names))
    _check_boxes(arrays["boxes"], arrays["box_end"])
    faults = _faults(table["faults"], arrays, files)
    return Index(
        kind=table["kind"],
        files=files,
        class_names=names,
        faults=faults,
        file=arrays["file"],
        offset=arrays["offset"],
        size=arrays["size"],
        label=arrays["label"],
        crc=arrays["crc"],
        box_end=arrays["box_end"],
        boxes=arrays["boxes"],
    )


def _files(table: object) -> tuple[IndexedFile, ...]:
    files = tuple(IndexedFile(*row) for row in _rows(table, (str, int, int, int)))
    if not all(is_count(file.bytes) and is_count(file.records) for file in files):
        raise BadIndexError("its files have sizes that no file has")
    if len({file.name for file in files}) < len(files):
        raise BadIndexError("it names a file twice")
    return files


def _class_names(table: object) -> tuple[str, ...]:
    if not isinstance(table, list) or not all(isinstance(name, str) for name in table):
        raise BadIndexError("its class names are no list of names")
    if len(table) > MOST_CLASSES:
        raise BadIndexError(f"it has {len(table):,} classes, at most {MOST_CLASSES:,} are known")
    return tuple(table)


def _rows(table: object, types: tuple[type, ...]) -> list[list[Any]]:
    if not isinstance(table, list):
        raise BadIndexError("it holds something else where a list must be")
    for row in table:
        if not isinstance(row, list) or tuple(type(value) for value in row) != types:
            raise BadIndexError("it holds a row of wrong types")
    return table


def _check_places(arrays: Arrays, files: tuple[IndexedFile, ...]) -> None:
    """Records follow each other file by file, and each lies inside its own."""
    records = [file.records for file in files]
    if sum(records) != len(arrays["file"]):
        raise BadIndexError(f"its files hold {sum(records):,} records, it {len(arrays['file']):,}")
    if not np.array_equal(arrays["file"], np.repeat(np.arange(len(files)), records)):
        raise BadIndexError("its records are not in the order of its files")
    room = np.repeat(np.array([file.bytes for file in files], np.int64), records)
    offset, size = arrays["offset"], arrays["size"]
    if not ((offset >= 0) & (size >= 0)).all() or (offset > room - size).any():
        raise BadIndexError("a record lies outside its file")


def _check_labels(label: npt.NDArray[Any], classes: int) -> None:
    if len(label) and not UNKNOWN <= label.min() <= label.max() < classes:
        raise BadIndexError(f"it has the label {label.max()}, but {classes:,} classes")


def _check_boxes(boxes: npt.NDArray[Any], box_end: npt.NDArray[Any]) -> None:
    last = int(box_end[-1]) if len(box_end) else 0
    if (
        last != len(boxes)
        or (len(box_end) and box_end[0] < 0)
        or (box_end[1:] < box_end[:-1]).any()
    ):
        raise BadIndexError("its boxes belong to no records")
    inside = ((boxes >= 0) & (boxes <= 1)).all()  # not so for NaN
    if not inside or (boxes[:, :2] > boxes[:, 2:]).any():
        raise BadIndexError("a box lies outside its image")


def _faults(table: object, arrays: Arrays, files: tuple[IndexedFile, ...]) -> tuple[Fault, ...]:
    rows = _rows(table, (int, int, str))
    numbers = [row[0] for row in rows]
    if len(rows) > MOST_FAULTS or numbers != sorted(set(numbers)):
        raise BadIndexError("its faults are too many, or not in order")
    if numbers and not 0 <= numbers[0] <= numbers[-1] < len(arrays["label"]):
        raise BadIndexError("it has a fault of a record that is not there")
    if (arrays["label"][numbers] != UNKNOWN).any():
        raise BadIndexError("it has a fault of a record with a label")
    if not all(is_count(offset) for _, offset, _ in rows):
        raise BadIndexError("it has a fault that lies nowhere")
    return tuple(
        Fault(number, files[int(arrays["file"][number])].name, offset, reason)
        for number, offset, reason in rows
    )
