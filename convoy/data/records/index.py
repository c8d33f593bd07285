"""Where every record of a split is and what is known of it: in memory, and as a file that is
checked when read.

The file is a safetensors file with one checksum over all arrays.
"""

import hashlib
import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
import numpy.typing as npt

from convoy.data.records.record import UNKNOWN, Boxes

ShardFormat = Literal["tfrecord", "webdataset"]
Numbers = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]  # (bytes,): the only view of a map that the checksum takes

MOST_CLASSES = 2**17  # ImageNet-21k has 21,843
MOST_FAULTS = 10_000  # that keep their reason; all others only have the label of a bad record

_FORMATS = ("tfrecord", "webdataset")
_MOST_TEXT_BYTES = 2**25
_MOST_HEADER_BYTES = 2**12
_LENGTH_BYTES = 8
_TYPES = {"I64": np.int64, "F32": np.float32, "I32": np.int32, "U32": np.uint32, "U8": np.uint8}


class BadIndexError(ValueError):
    """Why bytes are not a usable index."""


@dataclass(frozen=True)
class IndexedFile:
    """A shard as it was when it was scanned."""

    name: str
    bytes: int
    mtime_ns: int
    records: int


@dataclass(frozen=True)
class Fault:
    """A record that cannot be used: its number in the split, and where it is in its file."""

    number: int
    file: str
    offset: int
    reason: str


@dataclass(frozen=True, eq=False)
class Index:
    """One split. Bad records have entries too, so that the numbers of others never shift."""

    kind: ShardFormat
    files: tuple[IndexedFile, ...]
    class_names: tuple[str, ...]
    faults: tuple[Fault, ...]
    file: npt.NDArray[np.uint32]  # (records,), like all below but `boxes`
    offset: Numbers  # of a whole TFRecord frame, or of the image in a tar
    size: Numbers
    label: npt.NDArray[np.int32]  # from 0, or UNKNOWN
    crc: npt.NDArray[np.uint32]  # CRC32C of the images; empty if the shards have their own
    box_end: Numbers  # a record's boxes are between the end of the record before and its own
    boxes: Boxes

    def __len__(self) -> int:
        return len(self.label)

    def boxes_of(self, number: int) -> Boxes:
        start = int(self.box_end[number - 1]) if number else 0
        return self.boxes[start : int(self.box_end[number])]

    def number_in_file(self, number: int) -> int:
        """Its position within its own shard, from 0."""
        return number - int(np.searchsorted(self.file, self.file[number]))

    @property
    def stamp(self) -> str:
        """Identifies these shards as they are now."""
        return hashlib.sha256(repr(self.files).encode()).hexdigest()


@dataclass(frozen=True)
class IndexLayout:
    """The lengths of all arrays in an index file, which determine its header."""

    records: int
    boxes: int
    crcs: int
    text: int

    @property
    def arrays(self) -> list[tuple[str, str, list[int]]]:
        """Name, type and shape. Wide types come first, which keeps all of them aligned."""
        return [
            ("offset", "I64", [self.records]),
            ("size", "I64", [self.records]),
            ("box_end", "I64", [self.records]),
            ("boxes", "F32", [self.boxes, 4]),
            ("label", "I32", [self.records]),
            ("file", "U32", [self.records]),
            ("crc", "U32", [self.crcs]),
            ("text", "U8", [self.text]),
        ]

    @property
    def total(self) -> int:
        return 32 * self.records + 16 * self.boxes + 4 * self.crcs + self.text

    def header(self, crc: int) -> bytes:
        metadata = {"crc32c": f"{crc:08x}", "form": "convoy index 1"}
        entries: dict[str, Any] = {"__metadata__": metadata}
        end = 0
        for name, code, shape in self.arrays:
            begin, end = end, end + np.dtype(_TYPES[code]).itemsize * prod(shape)
            entries[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def save(index: Index, path: Path) -> None:
    """Write a new file; the caller gives it its final name."""
    table = {
        "kind": index.kind,
        "files": [[file.name, file.bytes, file.mtime_ns, file.records] for file in index.files],
        "class_names": index.class_names,
        "faults": [[fault.number, fault.offset, fault.reason] for fault in index.faults],
    }
    text = np.frombuffer(json.dumps(table, separators=(",", ":")).encode(), np.uint8)
    if len(text) > _MOST_TEXT_BYTES:
        raise BadIndexError(f"{len(text):,} bytes of names and faults are too many for an index")
    layout = IndexLayout(len(index), len(index.boxes), len(index.crc), len(text))
    arrays = {**vars(index), "text": text}
    ordered = [
        np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)
        for name, _, _ in layout.arrays
    ]
    crc = 0
    for array in ordered:
        crc = google_crc32c.extend(crc, array)
    with path.open("xb") as file:
        file.write(layout.header(crc))
        for array in ordered:
            file.write(array.data)


def load(path: Path) -> Index:
    """The index in a file, its arrays mapped; BadIndexError if it is not right."""
    with path.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise BadIndexError("it is empty") from error
    return parse(np.frombuffer(mapped, np.uint8))


def parse(data: ByteArray) -> Index:
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    if length > _MOST_HEADER_BYTES:
        raise BadIndexError("its header is not that of an index")
    header = data[: _LENGTH_BYTES + length].tobytes()
    layout, crc = _read_header(header)
    if header != layout.header(crc):
        raise BadIndexError("its header is not that of an index")
    body = data[len(header) :]
    if len(body) != layout.total:
        raise BadIndexError(f"{layout.total:,} bytes should follow its header, {len(body):,} do")
    if google_crc32c.value(body) != crc:
        raise BadIndexError("its checksum is wrong")
    arrays, start = {}, 0
    for name, code, shape in layout.arrays:
        arrays[name] = np.frombuffer(body, _TYPES[code], prod(shape), start).reshape(shape)
        start += arrays[name].nbytes
    return _checked(arrays, arrays.pop("text").tobytes())


def _read_header(header: bytes) -> tuple[IndexLayout, int]:
    """What the header says, as far as another one can be written from it to compare."""
    try:
        entries = json.loads(header[_LENGTH_BYTES:])
        lengths = [entries[name]["shape"][0] for name in ("label", "boxes", "crc", "text")]
        crc = int(entries["__metadata__"]["crc32c"], 16)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise BadIndexError("its header is not that of an index") from error
    if not all(type(length) is int and 0 <= length < 2**48 for length in (*lengths, crc)):
        raise BadIndexError("its header gives lengths that no index has")
    layout = IndexLayout(*lengths)
    if layout.crcs not in (0, layout.records) or layout.text > _MOST_TEXT_BYTES:
        raise BadIndexError("its header gives lengths that do not fit each other")
    return layout, crc


def _checked(arrays: Mapping[str, npt.NDArray[Any]], text: bytes) -> Index:
    """The checksum was right; this is for an index that another program wrote."""
    try:
        table = json.loads(text)
        files = tuple(IndexedFile(*row) for row in table["files"])
        faults = tuple(
            Fault(number, files[arrays["file"][number]].name, offset, reason)
            for number, offset, reason in table["faults"]
        )
        index = Index(table["kind"], files, tuple(table["class_names"]), faults, **arrays)
        lists = (table["files"], table["faults"], table["class_names"])
        fits = all(isinstance(entry, list) for entry in lists) and _fits(index)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise BadIndexError("its table of names cannot be read") from error
    if not fits:
        raise BadIndexError("its parts do not fit each other")
    return index


def _fits(index: Index) -> bool:
    """Records and boxes follow each other, and each is inside its own file, image or class."""
    records = [file.records for file in index.files]
    if sum(records) != len(index) or index.kind not in _FORMATS:
        return False
    in_order = np.repeat(np.arange(len(records)), records)
    file_bytes = np.repeat(np.array([file.bytes for file in index.files], np.int64), records)
    is_inside = (index.offset >= 0) & (index.size >= 0) & (index.offset <= file_bytes - index.size)
    labels, boxes = index.label, index.boxes
    box_ends = np.concatenate([[0], index.box_end])
    names = [file.name for file in index.files]
    numbers = [fault.number for fault in index.faults]
    return bool(
        np.array_equal(index.file, in_order)
        and is_inside.all()
        and labels.min(initial=UNKNOWN) >= UNKNOWN
        and labels.max(initial=UNKNOWN) < len(index.class_names) <= MOST_CLASSES
        and all(isinstance(name, str) for name in index.class_names)
        and box_ends[-1] == len(boxes)
        and (box_ends[1:] >= box_ends[:-1]).all()
        and ((boxes >= 0) & (boxes <= 1)).all()  # false for NaN
        and (boxes[:, :2] <= boxes[:, 2:]).all()
        and len(set(names)) == len(names)
        and numbers == sorted(set(numbers))
        and all(fault.offset >= 0 for fault in index.faults)
        and (labels[numbers] == UNKNOWN).all()
    )
