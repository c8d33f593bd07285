"""Index ↔ file: safetensors with eight arrays, the last one JSON text with all names and faults.

The header follows from four lengths and a checksum, so one that is not what we would have written
is refused. Nothing in the file is trusted: every array's type, length and range is checked.
"""

import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from convoy.data.records.index import Index
from convoy.data.records.index_checks import BadIndexError, checked, is_count

Bytes = npt.NDArray[np.uint8]  # (bytes,): the only view of a map that the checksum takes uncopied

_MOST_TEXT_BYTES = 2**25
_MOST_HEADER_BYTES = 2**12
_LENGTH_BYTES = 8
_TYPES = {"I64": np.int64, "F32": np.float32, "I32": np.int32, "U32": np.uint32, "U8": np.uint8}


@dataclass(frozen=True)
class Layout:
    """All that the places of the arrays depend on."""

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
        entries: dict[str, Any] = {
            "__metadata__": {"crc32c": f"{crc:08x}", "form": "convoy index 1"}
        }
        end = 0
        for name, code, shape in self.arrays:
            begin, end = end, end + np.dtype(_TYPES[code]).itemsize * _product(shape)
            entries[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _product(shape: list[int]) -> int:
    return shape[0] * (shape[1] if len(shape) == 2 else 1)


def save(index: Index, path: Path) -> None:
    """Write all of it; the caller sees to the name it gets in the end."""
    text = np.frombuffer(_text(index), np.uint8)
    if len(text) > _MOST_TEXT_BYTES:
        raise BadIndexError(f"{len(text):,} bytes of names and faults are too many for an index")
    layout = Layout(len(index), len(index.boxes), len(index.crc), len(text))
    arrays = {**_arrays(index), "text": text}
    ordered = [_raw(arrays[name]) for name, _, _ in layout.arrays]
    crc = 0
    for array in ordered:
        crc = google_crc32c.extend(crc, array)
    with path.open("xb") as file:
        file.write(layout.header(crc))
        for array in ordered:
            file.write(array.data)


def _arrays(index: Index) -> dict[str, npt.NDArray[Any]]:
    return {
        "offset": index.offset,
        "size": index.size,
        "box_end": index.box_end,
        "boxes": index.boxes,
        "label": index.label,
        "file": index.file,
        "crc": index.crc,
    }


def _raw(array: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _text(index: Index) -> bytes:
    table = {
        "kind": index.kind,
        "files": [[file.name, file.bytes, file.mtime_ns, file.records] for file in index.files],
        "class_names": index.class_names,
        "faults": [[fault.number, fault.offset, fault.reason] for fault in index.faults],
    }
    return json.dumps(table, separators=(",", ":")).encode()


def load(path: Path) -> Index:
    """The index in a file, its arrays mapped; BadIndexError where it is not right."""
    with path.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise BadIndexError("it is empty") from error
    return parse(np.frombuffer(mapped, np.uint8))


def parse(data: Bytes) -> Index:
    """The index in these bytes."""
    header = _take_header(data)
    layout, crc = _understood(header)
    if header != layout.header(crc):
        raise BadIndexError("its header is not that of an index")
    body = data[len(header) :]
    if len(body) != layout.total:
        raise BadIndexError(f"{layout.total:,} bytes should follow its header, {len(body):,} do")
    if google_crc32c.value(body) != crc:
        raise BadIndexError("its checksum is wrong")
    arrays, start = {}, 0
    for name, code, shape in layout.arrays:
        arrays[name] = np.frombuffer(body, _TYPES[code], _product(shape), start).reshape(shape)
        start += arrays[name].nbytes
    table = _read_text(arrays.pop("text").tobytes())
    return checked(arrays, table)


def _take_header(data: Bytes) -> bytes:
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    if length > _MOST_HEADER_BYTES:
        raise BadIndexError("its header is not that of an index")
    return data[: _LENGTH_BYTES + length].tobytes()


def _understood(header: bytes) -> tuple[Layout, int]:
    """What the header says, as far as another one can be written from it to compare."""
    try:
        entries = json.loads(header[_LENGTH_BYTES:])
        lengths = [entries[name]["shape"][0] for name in ("label", "boxes", "crc", "text")]
        crc = int(entries["__metadata__"]["crc32c"], 16)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise BadIndexError("its header is not that of an index") from error
    if not all(is_count(length) for length in lengths) or not 0 <= crc < 2**32:
        raise BadIndexError("its header gives lengths that no index has")
    layout = Layout(*lengths)
    if layout.crcs not in (0, layout.records) or layout.text > _MOST_TEXT_BYTES:
        raise BadIndexError("its header gives lengths that do not fit each other")
    return layout, crc


def _read_text(text: bytes) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadIndexError("its table of names cannot be read") from error
    if not isinstance(table, dict) or table.keys() != {"kind", "files", "class_names", "faults"}:
        raise BadIndexError("its table of names lacks entries, or has others")
    return table
