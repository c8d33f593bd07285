"""Scan one tar shard: its members, samples, labels, boxes and faults.

The standard library's tarfile follows negative sizes and can loop on damaged headers; this reader
stops at the first invalid header.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import google_crc32c
import numpy as np

from convoy.data.records.folder import IMAGE_SUFFIXES
from convoy.data.records.index import MAX_CLASSES
from convoy.data.records.index_builder import ShardScan
from convoy.data.records.record import (
    MAX_RECORD_BYTES,
    NO_BOXES,
    BadContentError,
    Boxes,
    drop_empty_boxes,
    invalid_boxes,
)
from convoy.errors import DataError
from convoy.text import printable, quote_shortened

BLOCK_BYTES = 512
IMAGE_EXTENSIONS = frozenset(suffix.removeprefix(b".") for suffix in IMAGE_SUFFIXES)

_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_TYPE_FLAG = slice(156, 157)
_MAGIC = slice(257, 263)
_PREFIX = slice(345, 500)
_FILE_TYPES = (b"0", b"\0", b"7")
_TYPES_WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes
_EXTENDED_HEADER_TYPES = (b"x", b"X", b"g", b"L", b"K")
_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
_OCTAL = re.compile(rb"[0-7]*")
_PAX_LENGTH = re.compile(rb"([0-9]{1,6}) ")
_PAX_SIZE = re.compile(rb"[0-9]{1,18}")
_MAX_HEADER_BYTES = 2**16  # of a long name or a PAX header
_CHUNK = 2**18

_SAMPLE_NAME = re.compile(rb"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)  # key and suffix
_RESERVED = re.compile(rb"__[^/]*__(?:$|[./])")  # reserved by webdataset
_LABEL = re.compile(rb"\s*[0-9]{1,18}\s*")
_MAX_TEXT_BYTES = 2**20  # of a .cls or .json
_MAX_CORNER = 2**31  # larger values are not even pixels


class TarMember(NamedTuple):
    name: bytes
    start: int  # of its first header
    offset: int  # of its data
    size: int
    is_file: bool


class CorruptTarError(Exception):
    """The file cannot be read from `offset` on."""

    def __init__(self, offset: int, reason: str, *, after_end_marker: bool = False) -> None:
        super().__init__(reason)
        self.offset = offset
        self.after_end_marker = after_end_marker  # all members before it are complete


def iter_members(stream: BinaryIO, total: int) -> Iterator[TarMember]:
    """Yield the members of a file of `total` bytes.

    Raise CorruptTarError where it is damaged or truncated, BadContentError if it is compressed.
    """
    _check_not_compressed(read_exactly(stream, 0, min(8, total)))
    offset = start = 0
    extended: dict[bytes, bytes] = {}  # values of extended headers for the next member
    while (header := _read_header(stream, offset, total)) is not None:
        type_flag, data = header[_TYPE_FLAG], offset + BLOCK_BYTES
        size = _parse_number(header[_SIZE], offset)
        if type_flag in _EXTENDED_HEADER_TYPES:
            text = _read_extended_header(stream, data, size, total)
            if type_flag == b"L":
                extended[b"path"] = text.partition(b"\0")[0]
            elif type_flag in (b"x", b"X"):
                extended |= _parse_pax_records(text, offset)
            offset = data + _pad_to_block(size)
            continue
        if type_flag == b"S" or any(key.startswith(b"GNU.sparse") for key in extended):
            raise CorruptTarError(start, "a sparse member, which is not supported")
        name = extended[b"path"] if b"path" in extended else _parse_name(header)
        size = int(extended.get(b"size", size))
        is_old_folder = type_flag == b"\0" and name.endswith(b"/")
        has_data = type_flag not in _TYPES_WITHOUT_DATA and not is_old_folder
        if has_data and size > total - data:
            raise CorruptTarError(
                start, f"truncated inside a member of {size} bytes: only {total - data} remain"
            )
        yield TarMember(name, start, data, size, has_data and type_flag in _FILE_TYPES)
        offset = start = data + _pad_to_block(size) if has_data else data
        extended = {}
    if start != offset:
        raise CorruptTarError(start, "an extended header without a member")


def _check_not_compressed(first_bytes: bytes) -> None:
    for magic, compression in _COMPRESSIONS.items():
        if first_bytes.startswith(magic):
            raise BadContentError(
                f"compressed with {compression}, which does not allow random access; decompress it "
                "to a plain .tar"
            )


def _read_header(stream: BinaryIO, offset: int, total: int) -> bytes | None:
    """Read a header block; None for the end-of-archive marker, which only zeros may follow."""
    remaining = total - offset
    if remaining <= 0:
        raise CorruptTarError(
            total, "no end-of-archive marker: truncated between two members, or unfinished"
        )
    if remaining < BLOCK_BYTES:
        raise CorruptTarError(offset, f"truncated inside a header: only {remaining} bytes remain")
    header = read_exactly(stream, offset, BLOCK_BYTES)
    if header == bytes(BLOCK_BYTES):
        for start in range(offset, total, _CHUNK):
            if read_exactly(stream, start, min(_CHUNK, total - start)).strip(b"\0"):
                reason = (
                    f"{remaining} bytes follow the end-of-archive marker; "
                    "were two files concatenated?"
                )
                raise CorruptTarError(offset, reason, after_end_marker=True)
        return None
    checksum = _parse_number(header[_CHECKSUM], offset)
    summed = header[: _CHECKSUM.start] + b" " * 8 + header[_CHECKSUM.stop :]
    # Some old writers summed signed bytes.
    high = sum(byte > 127 for byte in summed) if checksum != sum(summed) else 0
    if checksum != sum(summed) - 256 * high:
        raise CorruptTarError(
            offset, f"not a member header, or a damaged one; {remaining} bytes remain unread"
        )
    return header


def _read_extended_header(stream: BinaryIO, data: int, size: int, total: int) -> bytes:
    if size > _MAX_HEADER_BYTES:
        raise CorruptTarError(data, f"a header of {size} bytes; the limit is {_MAX_HEADER_BYTES}")
    if size > total - data:
        raise CorruptTarError(
            data, f"truncated inside a header of {size} bytes: only {total - data} remain"
        )
    return read_exactly(stream, data, size)


def _parse_pax_records(text: bytes, offset: int) -> dict[bytes, bytes]:
    """Parse records such as `22 path=0001.jpg\\n`, whose length includes itself."""
    records: dict[bytes, bytes] = {}
    start = 0
    while start < len(text) and text[start]:
        length = _PAX_LENGTH.match(text, start)
        end = start + int(length[1]) if length else 0
        if length is None or end <= length.end() or text[end - 1 : end] != b"\n":
            raise CorruptTarError(offset, "an invalid PAX header")
        key, _, value = text[length.end() : end - 1].partition(b"=")
        if key == b"size" and not _PAX_SIZE.fullmatch(value):
            raise CorruptTarError(offset, "a PAX header with an invalid number")
        records[key] = value
        start = end
    return records


def _parse_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[_PREFIX].partition(b"\0")[0]
    # The GNU format uses those bytes differently.
    return prefix + b"/" + name if prefix and header[_MAGIC] == b"ustar\0" else name


def _parse_number(field: bytes, offset: int) -> int:
    """Parse octal digits, or for large numbers a marker and binary bytes."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0")
    if not _OCTAL.fullmatch(digits):
        raise CorruptTarError(offset, "a header with an invalid number")
    return int(digits or b"0", 8)


def _pad_to_block(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def read_exactly(stream: BinaryIO, offset: int, size: int) -> bytes:
    """Read `size` bytes at `offset`; raise CorruptTarError if they are not there."""
    stream.seek(offset)
    data = stream.read(size)
    if len(data) < size:
        raise CorruptTarError(offset, "the file became shorter while it was read")
    return data


@dataclass
class TarSample:
    """Adjacent members with the same key."""

    key: bytes
    start: int
    parts: dict[bytes, TarMember] = field(default_factory=dict)  # by suffix
    repeated_suffix: bytes | None = None


def iter_samples(members: Iterator[TarMember]) -> Iterator[TarSample]:
    """Group members by key. A sample is known to be complete only by what follows it."""
    sample = None
    try:
        for member in members:
            name = _SAMPLE_NAME.fullmatch(member.name)
            if not member.is_file or name is None or _RESERVED.match(member.name):
                continue
            key, suffix = name[1], name[2].lower()
            if sample is None or key != sample.key:
                if sample is not None:
                    yield sample
                sample = TarSample(key, member.start)
            if suffix in sample.parts:
                sample.repeated_suffix = suffix
            sample.parts[suffix] = member
    except CorruptTarError as error:
        if sample is not None and not error.after_end_marker:
            raise CorruptTarError(sample.start, str(error)) from error
        if sample is not None:
            yield sample
        raise
    if sample is not None:
        yield sample


def scan_shard(path: Path) -> ShardScan:
    """Scan all samples of a shard; raise DataError if it is compressed."""
    with path.open("rb", buffering=2**20) as stream:
        try:
            return scan_stream(stream, stream.seek(0, os.SEEK_END))
        except BadContentError as error:
            raise DataError(f"{printable(str(path))}: {error}") from error


def scan_stream(stream: BinaryIO, total: int) -> ShardScan:
    """Scan all samples in `total` bytes; the rest after an invalid header is one bad record."""
    scan = ShardScan(with_checksums=True)
    try:
        for sample in iter_samples(iter_members(stream, total)):
            _scan_sample(stream, sample, scan)
    except CorruptTarError as error:
        scan.add_bad(error.offset, total - error.offset, str(error))
    return scan


def _scan_sample(stream: BinaryIO, sample: TarSample, scan: ShardScan) -> None:
    offset, size = sample.start, 0
    try:
        image = _find_image(sample)
        offset, size = image.offset, image.size
        label = _parse_label(read_text(stream, sample, b"cls"))
        boxes = (
            _parse_boxes(read_text(stream, sample, b"json"))
            if b"json" in sample.parts
            else NO_BOXES
        )
        crc = google_crc32c.value(read_exactly(stream, offset, size))
        scan.add(offset, size, label, boxes, crc)
    except BadContentError as error:
        scan.add_bad(offset, size, f"sample {_quoted(sample.key)} {error}")


def _find_image(sample: TarSample) -> TarMember:
    images = [member for suffix, member in sample.parts.items() if suffix in IMAGE_EXTENSIONS]
    if sample.repeated_suffix is not None:
        suffix = printable(sample.repeated_suffix.decode(errors="replace"))
        raise BadContentError(f"has .{suffix} twice")
    if not images and b"pth" in sample.parts:
        raise BadContentError("is a tensor (.pth, pickle), which is never loaded")
    if len(images) != 1:
        raise BadContentError(f"has {len(images) or 'no'} image{'s' * (len(images) > 1)}")
    size = images[0].size
    if not 0 < size <= MAX_RECORD_BYTES:
        raise BadContentError(
            f"has an image of {size} bytes; the limits are 1 … {MAX_RECORD_BYTES}"
        )
    return images[0]


def read_text(stream: BinaryIO, sample: TarSample, suffix: bytes) -> bytes:
    """Read a small member of a sample; raise BadContentError if it is missing or too large."""
    name = f".{suffix.decode()}"
    if suffix not in sample.parts:
        raise BadContentError(f"has no {name}")
    member = sample.parts[suffix]
    if member.size > _MAX_TEXT_BYTES:
        raise BadContentError(
            f"has a {name} of {member.size} bytes; the limit is {_MAX_TEXT_BYTES}"
        )
    return read_exactly(stream, member.offset, member.size)


def _parse_label(text: bytes) -> int:
    if not _LABEL.fullmatch(text):
        raise BadContentError(
            f"has the label {_quoted(text)}, which is not an integer of at least 0"
        )
    label = int(text)
    if label >= MAX_CLASSES:
        raise BadContentError(f"has the label {label}; the limit is {MAX_CLASSES - 1}")
    return label


def _parse_boxes(text: bytes) -> Boxes:
    """Parse `{"bbox": null}`, one box or several; other entries are ignored."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        raise BadContentError("has a .json that cannot be read") from None
    if not isinstance(table, dict):
        raise BadContentError("has a .json that is not an object")
    rows = table.get("bbox")
    if not rows:
        return NO_BOXES
    if isinstance(rows, list) and not isinstance(rows[0], list):
        rows = [rows]
    if not isinstance(rows, list) or not all(_is_box(row) for row in rows):
        raise BadContentError("has a bbox that is not a list of four numbers")
    boxes = np.array(rows, np.float32)
    for _, reason in invalid_boxes(boxes):
        raise BadContentError(f"has the bbox {reason}")
    return drop_empty_boxes(boxes.clip(0, 1))


def _is_box(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and all(type(corner) in (int, float) and abs(corner) < _MAX_CORNER for corner in row)
    )


def _quoted(text: bytes) -> str:
    return quote_shortened(text.decode("utf-8", errors="replace"))
