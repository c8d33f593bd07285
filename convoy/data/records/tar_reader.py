"""One tar shard, read from end to end: members, samples, labels, boxes, and what is wrong.

The standard library's tarfile follows negative sizes and can loop on damaged headers; this reader
stops at the first header that cannot be right.
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

from convoy.data.records.folder import SUFFIXES
from convoy.data.records.index import MOST_CLASSES
from convoy.data.records.indexing import ShardScan
from convoy.data.records.record import (
    MAX_RECORD_BYTES,
    NO_BOXES,
    BadContentError,
    Boxes,
    box_problems,
    with_area,
)
from convoy.errors import DataError
from convoy.text import printable, shown

BLOCK = 512
IMAGES = frozenset(suffix.removeprefix(b".") for suffix in SUFFIXES)

_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_KIND = slice(156, 157)
_MAGIC = slice(257, 263)
_PREFIX = slice(345, 500)
_FILES = (b"0", b"\0", b"7")
_WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes
_ABOUT_NEXT = (b"x", b"X", b"g", b"L", b"K")
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
_MOST_HEADER_BYTES = 2**16  # of a long name, or of a PAX header
_CHUNK = 2**18

_SAMPLE_NAME = re.compile(rb"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)  # key and suffix
_RESERVED = re.compile(rb"__[^/]*__(?:$|[./])")  # what webdataset keeps for itself
_LABEL = re.compile(rb"\s*[0-9]{1,18}\s*")
_MOST_TEXT_BYTES = 2**20  # of a .cls or a .json
_MOST_CORNER = 2**31  # corners beyond it are not even pixels


class TarMember(NamedTuple):
    """One entry of a tar file."""

    name: bytes
    start: int  # of its first header
    offset: int  # of its data
    size: int
    is_file: bool


class DamageError(Exception):
    """From here on the file cannot be read."""

    def __init__(self, offset: int, reason: str, *, after_end: bool = False) -> None:
        super().__init__(reason)
        self.offset = offset
        self.after_end = after_end  # all members before it are complete


def members(stream: BinaryIO, total: int) -> Iterator[TarMember]:
    """All members of a file of `total` bytes; DamageError where it does not end as it should.

    BadContentError for a compressed file.
    """
    _refuse_compressed(take(stream, 0, min(8, total)))
    offset = start = 0
    about: dict[bytes, bytes] = {}  # what extended headers say about the next member
    while (header := _header(stream, offset, total)) is not None:
        kind, data, size = header[_KIND], offset + BLOCK, _number(header[_SIZE], offset)
        if kind in _ABOUT_NEXT:
            text = _extended_header(stream, data, size, total)
            if kind == b"L":
                about[b"path"] = text.partition(b"\0")[0]
            elif kind in (b"x", b"X"):
                about |= _pax_records(text, offset)
            offset = data + _padded(size)
            continue
        if kind == b"S" or any(key.startswith(b"GNU.sparse") for key in about):
            raise DamageError(start, "a sparse member, which is not read")
        name = about[b"path"] if b"path" in about else _name(header)
        size = int(about.get(b"size", size))
        has_data = kind not in _WITHOUT_DATA and not (kind == b"\0" and name.endswith(b"/"))
        if has_data and size > total - data:
            left = total - data
            raise DamageError(start, f"cut in a member of {size} bytes: {left} are left")
        yield TarMember(name, start, data, size, has_data and kind in _FILES)
        offset = start = data + _padded(size) if has_data else data
        about = {}
    if start != offset:
        raise DamageError(start, "a header of a member that does not follow")


def _refuse_compressed(begin: bytes) -> None:
    for mark, compression in _COMPRESSIONS.items():
        if begin.startswith(mark):
            raise BadContentError(
                f"compressed with {compression}; samples are read in any order, which that does "
                "not allow: unpack it to a plain .tar"
            )


def _header(stream: BinaryIO, offset: int, total: int) -> bytes | None:
    """The header block there; None for the end mark, after which only zeros may follow."""
    left = total - offset
    if left <= 0:
        raise DamageError(total, "it has no end mark: cut between two members, or not finished")
    if left < BLOCK:
        raise DamageError(offset, f"cut in a header: {left} bytes are left")
    header = take(stream, offset, BLOCK)
    if header == bytes(BLOCK):
        for start in range(offset, total, _CHUNK):
            if take(stream, start, min(_CHUNK, total - start)).strip(b"\0"):
                reason = f"{left} bytes follow the end mark; were two files joined?"
                raise DamageError(offset, reason, after_end=True)
        return None
    checksum = _number(header[_CHECKSUM], offset)
    others = header[: _CHECKSUM.start] + b" " * 8 + header[_CHECKSUM.stop :]
    # Some old writers summed signed bytes.
    high = sum(byte > 127 for byte in others) if checksum != sum(others) else 0
    if checksum != sum(others) - 256 * high:
        raise DamageError(offset, f"no header of a member, or a damaged one: {left} bytes are left")
    return header


def _extended_header(stream: BinaryIO, data: int, size: int, total: int) -> bytes:
    if size > _MOST_HEADER_BYTES:
        raise DamageError(data, f"a header of {size} bytes, at most {_MOST_HEADER_BYTES} are read")
    if size > total - data:
        raise DamageError(data, f"cut in a header of {size} bytes: {total - data} are left")
    return take(stream, data, size)


def _pax_records(text: bytes, offset: int) -> dict[bytes, bytes]:
    """`22 path=0001.jpg\\n`, the length counting all of itself."""
    records: dict[bytes, bytes] = {}
    start = 0
    while start < len(text) and text[start]:
        length = _PAX_LENGTH.match(text, start)
        end = start + int(length[1]) if length else 0
        if length is None or end <= length.end() or text[end - 1 : end] != b"\n":
            raise DamageError(offset, "a PAX header that is none")
        key, _, value = text[length.end() : end - 1].partition(b"=")
        if key == b"size" and not _PAX_SIZE.fullmatch(value):
            raise DamageError(offset, "a PAX header with a number that is none")
        records[key] = value
        start = end
    return records


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[_PREFIX].partition(b"\0")[0]
    # GNU's own format uses those bytes for other things.
    return prefix + b"/" + name if prefix and header[_MAGIC] == b"ustar\0" else name


def _number(field: bytes, offset: int) -> int:
    """Octal digits, or for large numbers a mark and plain bytes."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0")
    if not _OCTAL.fullmatch(digits):
        raise DamageError(offset, "a header with a number that is none")
    return int(digits or b"0", 8)


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def take(stream: BinaryIO, offset: int, size: int) -> bytes:
    """All of these bytes, or DamageError."""
    stream.seek(offset)
    data = stream.read(size)
    if len(data) < size:
        raise DamageError(offset, "it became shorter while it was read")
    return data


@dataclass
class TarSample:
    """Neighboring members with one key."""

    key: bytes
    start: int
    parts: dict[bytes, TarMember] = field(default_factory=dict)  # by suffix
    repeated: bytes | None = None  # a suffix that came again


def samples(entries: Iterator[TarMember]) -> Iterator[TarSample]:
    """Members grouped by key. Only what follows a sample shows that it is complete."""
    sample = None
    try:
        for member in entries:
            name = _SAMPLE_NAME.fullmatch(member.name)
            if not member.is_file or name is None or _RESERVED.match(member.name):
                continue
            key, suffix = name[1], name[2].lower()
            if sample is None or key != sample.key:
                if sample is not None:
                    yield sample
                sample = TarSample(key, member.start)
            if suffix in sample.parts:
                sample.repeated = suffix
            sample.parts[suffix] = member
    except DamageError as damage:
        if sample is not None and not damage.after_end:
            raise DamageError(sample.start, str(damage)) from damage
        if sample is not None:
            yield sample
        raise
    if sample is not None:
        yield sample


def scan_shard(path: Path) -> ShardScan:
    """All samples of a shard; DataError for a compressed one."""
    with path.open("rb", buffering=2**20) as stream:
        try:
            return scan_stream(stream, stream.seek(0, os.SEEK_END))
        except BadContentError as error:
            raise DataError(f"{printable(str(path))}: {error}") from error


def scan_stream(stream: BinaryIO, total: int) -> ShardScan:
    """All samples in `total` bytes. Where it cannot be read further, the rest is one bad record."""
    scan = ShardScan(has_crc=True)
    try:
        for sample in samples(members(stream, total)):
            _scan_sample(stream, sample, scan)
    except DamageError as damage:
        scan.add_bad(damage.offset, total - damage.offset, str(damage))
    return scan


def _scan_sample(stream: BinaryIO, sample: TarSample, scan: ShardScan) -> None:
    offset, size = sample.start, 0
    try:
        image = _image(sample)
        offset, size = image.offset, image.size
        label = _label(_text(stream, sample, b"cls"))
        boxes = _boxes(_text(stream, sample, b"json")) if b"json" in sample.parts else NO_BOXES
        scan.add(
            offset, size, label, boxes, google_crc32c.value(take(stream, image.offset, image.size))
        )
    except BadContentError as error:
        scan.add_bad(offset, size, f"sample {_shown(sample.key)} {error}")


def _image(sample: TarSample) -> TarMember:
    images = [member for suffix, member in sample.parts.items() if suffix in IMAGES]
    if sample.repeated is not None:
        suffix = printable(sample.repeated.decode(errors="replace"))
        raise BadContentError(f"has .{suffix} twice")
    if not images and b"pth" in sample.parts:
        raise BadContentError("is a tensor (.pth, pickle), which is never read")
    if len(images) != 1:
        raise BadContentError(f"has {len(images) or 'no'} image{'s' * (len(images) > 1)}")
    size = images[0].size
    if not 0 < size <= MAX_RECORD_BYTES:
        raise BadContentError(f"has an image of {size} bytes, it may have 1 … {MAX_RECORD_BYTES}")
    return images[0]


def _text(stream: BinaryIO, sample: TarSample, suffix: bytes) -> bytes:
    name = f".{suffix.decode()}"
    if suffix not in sample.parts:
        raise BadContentError(f"has no {name}")
    member = sample.parts[suffix]
    if member.size > _MOST_TEXT_BYTES:
        raise BadContentError(
            f"has a {name} of {member.size} bytes, it may have {_MOST_TEXT_BYTES}"
        )
    return take(stream, member.offset, member.size)


def _label(text: bytes) -> int:
    if not _LABEL.fullmatch(text):
        raise BadContentError(f"has the label {_shown(text)}, which is no number from 0 on")
    label = int(text)
    if label >= MOST_CLASSES:
        raise BadContentError(f"has the label {label}, known are 0 … {MOST_CLASSES - 1}")
    return label


def _boxes(text: bytes) -> Boxes:
    """`{"bbox": null}`, one box or several; other entries are ignored."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        raise BadContentError("has a .json that cannot be read") from None
    if not isinstance(table, dict):
        raise BadContentError("has a .json without names and values")
    rows = table.get("bbox")
    if not rows:
        return NO_BOXES
    if isinstance(rows, list) and not isinstance(rows[0], list):
        rows = [rows]
    if not isinstance(rows, list) or not all(_is_box(row) for row in rows):
        raise BadContentError("has a bbox that is no list of four numbers")
    boxes = np.array(rows, np.float32)
    for _, reason in box_problems(boxes):
        raise BadContentError(f"has the bbox {reason}")
    return with_area(boxes.clip(0, 1))


def _is_box(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and all(type(corner) in (int, float) and abs(corner) < _MOST_CORNER for corner in row)
    )


def _shown(text: bytes) -> str:
    return shown(text.decode("utf-8", errors="replace"))
