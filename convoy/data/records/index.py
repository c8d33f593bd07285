"""The index of a split: location, label and boxes of every record, in memory and on disk.

On disk it is a safetensors file with one checksum over all arrays, validated when it is read.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
import numpy.typing as npt

from convoy.data.records.record import UNKNOWN_LABEL, Boxes

ShardFormat = Literal["tfrecord", "webdataset"]
SHARD_FORMATS: tuple[ShardFormat, ...] = ("tfrecord", "webdataset")
Numbers = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]  # (bytes,): the only view of a mapping that google_crc32c accepts

MAX_CLASSES = 2**17  # ImageNet-21k has 21,843
MAX_FAULTS = 10_000  # stored with a reason; further bad records only have UNKNOWN_LABEL

_MAX_TEXT_BYTES = 2**25
_MAX_HEADER_BYTES = 2**12
_LENGTH_BYTES = 8
# In file order: wide types come first, which keeps all arrays aligned.
_ARRAYS: dict[str, tuple[str, type[np.generic]]] = {
    "offset": ("I64", np.int64),
    "size": ("I64", np.int64),
    "box_end": ("I64", np.int64),
    "boxes": ("F32", np.float32),
    "label": ("I32", np.int32),
    "file": ("U32", np.uint32),
    "crc": ("U32", np.uint32),
    "text": ("U8", np.uint8),
}


class BadIndexError(ValueError):
    """The reason why bytes are not a usable index."""


@dataclass(frozen=True)
class IndexedFile:
    """A shard as it was when it was scanned."""

    name: str
    bytes: int
    mtime_ns: int
    records: int


@dataclass(frozen=True)
class Fault:
    """A record that cannot be used: its index in the split and its location in its file."""

    number: int
    file: str
    offset: int
    reason: str


@dataclass(frozen=True, eq=False)
class Index:
    """The index of one split. Bad records have entries too, so that other indices never shift."""

    shard_format: ShardFormat
    files: tuple[IndexedFile, ...]
    class_names: tuple[str, ...]
    faults: tuple[Fault, ...]
    file: npt.NDArray[np.uint32]  # (records,), like all below but `boxes`
    offset: Numbers  # of the complete TFRecord frame, or of the image in a tar
    size: Numbers
    label: npt.NDArray[np.int32]  # from 0, or UNKNOWN_LABEL
    crc: npt.NDArray[np.uint32]  # CRC32C of the images; empty if the shards have checksums
    box_end: Numbers  # boxes of record i: boxes[box_end[i - 1]:box_end[i]]
    boxes: Boxes

    def __len__(self) -> int:
        return len(self.label)

    def index_in_file(self, record: int) -> int:
        return record - int(np.searchsorted(self.file, self.file[record]))


def write_header(lengths: Sequence[int], crc: int) -> bytes:
    """Build the header from the numbers of records, boxes, checksums and bytes of text."""
    records, boxes, crcs, text = lengths
    shapes = {"boxes": [boxes, 4], "crc": [crcs], "text": [text]}
    entries: dict[str, Any] = {"__metadata__": {"crc32c": f"{crc:08x}", "form": "convoy index 1"}}
    end = 0
    for name, (code, dtype) in _ARRAYS.items():
        shape = shapes.get(name, [records])
        begin, end = end, end + np.dtype(dtype).itemsize * prod(shape)
        entries[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _LENGTH_BYTES)
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header


def save(index: Index, path: Path) -> None:
    """Write an index to a new file."""
    table = {
        "kind": index.shard_format,
        "files": [[file.name, file.bytes, file.mtime_ns, file.records] for file in index.files],
        "class_names": index.class_names,
        "faults": [[fault.number, fault.offset, fault.reason] for fault in index.faults],
    }
    text = np.frombuffer(json.dumps(table, separators=(",", ":")).encode(), np.uint8)
    if len(text) > _MAX_TEXT_BYTES:
        raise BadIndexError(
            f"{len(text):,} bytes of names and faults; the limit is {_MAX_TEXT_BYTES:,}"
        )
    arrays = {**vars(index), "text": text}
    ordered = [np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8) for name in _ARRAYS]
    lengths = [len(array) for array in (index.label, index.boxes, index.crc, text)]
    with path.open("xb") as file:
        file.write(write_header(lengths, reduce(google_crc32c.extend, ordered, 0)))
        file.writelines(array.data for array in ordered)


def load(path: Path) -> Index:
    """Load an index with memory-mapped arrays; raise BadIndexError if it is invalid."""
    if path.stat().st_size == 0:
        raise BadIndexError("the file is empty")
    return parse(np.asarray(np.memmap(path, np.uint8, "r")))


def parse(data: ByteArray) -> Index:
    """Parse and validate the bytes of an index; raise BadIndexError if they are invalid."""
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    if length > _MAX_HEADER_BYTES:
        raise BadIndexError("invalid header")
    entries, crc = _read_header(data[: _LENGTH_BYTES + length].tobytes())
    body, total = data[_LENGTH_BYTES + length :], entries["text"]["data_offsets"][1]
    if len(body) != total:
        raise BadIndexError(f"expected {total:,} bytes after the header, found {len(body):,}")
    if google_crc32c.value(body) != crc:
        raise BadIndexError("checksum mismatch")
    arrays = {
        name: body[slice(*entries[name]["data_offsets"])]
        .view(dtype)
        .reshape(entries[name]["shape"])
        for name, (_, dtype) in _ARRAYS.items()
    }
    return _validated(arrays, arrays.pop("text").tobytes())


def _read_header(header: bytes) -> tuple[dict[str, Any], int]:
    """Return entries and checksum of a header, which must be exactly what `write_header` writes."""
    try:
        entries = json.loads(header[_LENGTH_BYTES:])
        lengths = [entries[name]["shape"][0] for name in ("label", "boxes", "crc", "text")]
        crc = int(entries["__metadata__"]["crc32c"], 16)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise BadIndexError("invalid header") from error
    in_range = all(type(length) is int and 0 <= length < 2**48 for length in (*lengths, crc))
    if not in_range or lengths[-1] > _MAX_TEXT_BYTES or header != write_header(lengths, crc):
        raise BadIndexError("invalid header")
    return entries, crc


def _validated(arrays: Mapping[str, npt.NDArray[Any]], text: bytes) -> Index:
    """Validate the contents: a correct checksum does not mean that convoy wrote the index."""
    try:
        table = json.loads(text)
        files = tuple(IndexedFile(*row) for row in table["files"])
        faults = tuple(
            Fault(number, files[arrays["file"][number]].name, offset, reason)
            for number, offset, reason in table["faults"]
        )
        index = Index(table["kind"], files, tuple(table["class_names"]), faults, **arrays)
        lists = (table["files"], table["faults"], table["class_names"])
        is_consistent = all(isinstance(entry, list) for entry in lists) and _is_consistent(index)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise BadIndexError("invalid table of names") from error
    if not is_consistent:
        raise BadIndexError("inconsistent contents")
    return index


def _is_consistent(index: Index) -> bool:
    """Check that records and boxes are in order and within their files, images and classes."""
    records = [file.records for file in index.files]
    if sum(records) != len(index) or index.shard_format not in SHARD_FORMATS:
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
        and len(index.crc) in (0, len(index))
        and is_inside.all()
        and labels.min(initial=UNKNOWN_LABEL) >= UNKNOWN_LABEL
        and labels.max(initial=UNKNOWN_LABEL) < len(index.class_names) <= MAX_CLASSES
        and all(isinstance(name, str) for name in index.class_names)
        and box_ends[-1] == len(boxes)
        and (box_ends[1:] >= box_ends[:-1]).all()
        and ((boxes >= 0) & (boxes <= 1)).all()  # False for NaN
        and (boxes[:, :2] <= boxes[:, 2:]).all()
        and len(set(names)) == len(names)
        and numbers == sorted(set(numbers))
        and all(fault.offset >= 0 for fault in index.faults)
        and (labels[numbers] == UNKNOWN_LABEL).all()
    )
