"""TFRecord framing: length, its checksum, the record, its checksum. Both are always verified.

A shard is walked from its first byte; where there is no way on, the rest of it is one bad frame.

    8 bytes   4 bytes        length bytes   4 bytes
    length    CRC of these   record         CRC of it      (little end first, CRC32C, masked)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from convoy.data.records.record import MAX_RECORD_BYTES

Bytes = npt.NDArray[np.uint8]  # (bytes,)

HEAD_BYTES, FOOT_BYTES = 12, 4
AROUND = HEAD_BYTES + FOOT_BYTES

_HEAD = struct.Struct("<QI")
_FOOT = struct.Struct("<I")
_MASK = 0xA282EAD8  # the format's own: a checksum of bytes that hold checksums is weak


class FrameError(ValueError):
    """Why a frame is bad."""


@dataclass(frozen=True)
class Frame:
    """A stretch of a shard: a record, or the reason why it is none."""

    offset: int
    size: int  # with all that frames the record
    record: bytes = b""
    reason: str | None = None


def walk(file: BinaryIO, total: int) -> Iterator[Frame]:
    """All frames of an open shard of so many bytes; together they cover it."""
    offset = 0
    while offset < total:
        frame = _next(file, offset, total - offset)
        yield frame
        offset += frame.size


def _next(file: BinaryIO, offset: int, left: int) -> Frame:
    head = file.read(HEAD_BYTES)
    try:
        length = _length(head)
    except FrameError as error:
        return Frame(offset, left, reason=f"{error}; the {left} bytes from here on are lost")
    size = length + AROUND
    if size > left:
        return Frame(offset, left, reason=_cut(size, left))
    if length > MAX_RECORD_BYTES:
        file.seek(length + FOOT_BYTES, 1)
        return Frame(offset, size, reason=_too_long(length))
    record = file.read(length)
    foot = file.read(FOOT_BYTES)
    if len(foot) < FOOT_BYTES:  # the file became shorter since it was measured
        return Frame(offset, left, reason=_cut(size, HEAD_BYTES + len(record) + len(foot)))
    try:
        _check(record, foot)
    except FrameError as error:
        return Frame(offset, size, reason=str(error))
    return Frame(offset, size, record)


def _cut(size: int, left: int) -> str:
    return f"cut in the middle: the record takes {size} bytes, {left} are left"


def _too_long(length: int) -> str:
    return f"a record of {length} bytes, at most {MAX_RECORD_BYTES} are read"


def unframed(frame: Bytes) -> Bytes:
    """The record in a frame that was whole when the shard was indexed."""
    length = _length(frame[:HEAD_BYTES].tobytes())
    if length + AROUND != len(frame):
        raise FrameError(f"its length is {length}, {len(frame) - AROUND} was indexed")
    record = frame[HEAD_BYTES : HEAD_BYTES + length]
    _check(record, frame[HEAD_BYTES + length :].tobytes())
    return record


def _length(head: bytes) -> int:
    if len(head) < HEAD_BYTES:
        raise FrameError(f"cut in the middle of a length: {len(head)} of {HEAD_BYTES} bytes")
    length: int
    length, crc = _HEAD.unpack(head)
    if crc != masked_crc(head[:8]):
        raise FrameError("the checksum of its length is wrong")
    return length


def _check(record: bytes | Bytes, foot: bytes) -> None:
    if _FOOT.unpack(foot)[0] != masked_crc(record):
        raise FrameError("the checksum of its bytes is wrong")
    if len(record) == 0:
        raise FrameError("it is empty: a record of 0 bytes")


def framed(record: bytes) -> list[bytes]:
    """A record with all that goes around it, to be written one after the other."""
    if not 0 < len(record) <= MAX_RECORD_BYTES:
        raise FrameError(_too_long(len(record)) if record else "a record of 0 bytes")
    length = len(record).to_bytes(8, "little")
    return [length, _FOOT.pack(masked_crc(length)), record, _FOOT.pack(masked_crc(record))]


def masked_crc(data: bytes | Bytes) -> int:
    """CRC32C, rotated and shifted as the format wants it."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def compression(start: bytes) -> str | None:
    """What a shard is compressed with, judged by its first bytes; None for a plain one."""
    if len(start) < 2 or (len(start) >= HEAD_BYTES and _is_head(start[:HEAD_BYTES])):
        return None
    if start[:2] == b"\x1f\x8b":
        return "gzip"
    # A zlib stream: deflate with a window of 32 KiB, and a multiple of 31 as its first number.
    return "zlib" if start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0 else None


def _is_head(head: bytes) -> bool:
    return bool(_HEAD.unpack(head)[1] == masked_crc(head[:8]))
