"""The TFRecord format without TensorFlow: protobuf, frames with checksums, tf.train.Example."""

import struct
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import google_crc32c
import numpy as np

from convoy.data.records.index import ByteArray
from convoy.data.records.record import MAX_RECORD_BYTES, BadContentError

Raw = bytes | memoryview
Span = tuple[int, int]  # from, to
Field = tuple[int, int, int, int]  # number, wire type, from, to

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_VARINT_BYTES = 10  # of 64 bits, seven in each


class ProtobufError(ValueError):
    """Bytes that are no protobuf message."""


def fields(data: Raw, span: Span, most: int) -> Iterator[Field]:
    start, end = span
    count = 0
    while start < end:
        tag, start = varint(data, start, end)
        number, kind = tag >> 3, tag & 7
        if kind == BYTES:
            length, start = varint(data, start, end)
            stop = start + length
        elif kind == VARINT:
            _, stop = varint(data, start, end)
        elif kind in _WIDTHS:
            stop = start + _WIDTHS[kind]
        else:
            raise ProtobufError(f"a field of the wire type {kind}")
        if stop > end:
            raise ProtobufError(f"a field of {stop - start} bytes where {end - start} are left")
        if not 0 < number < 2**29:
            raise ProtobufError(f"a field with the number {number}")
        count += 1
        if count > most:
            raise ProtobufError(f"more than {most} fields in one message")
        yield number, kind, start, stop
        start = stop


def messages(data: Raw, span: Span, wanted: int, most: int) -> Iterator[Span]:
    """The values of one field that holds messages or byte strings, as often as it is given."""
    for number, kind, start, end in fields(data, span, most):
        if number == wanted:
            if kind != BYTES:
                raise ProtobufError(f"field {number} of the wire type {kind}, not {BYTES}")
            yield start, end


def varint(data: Raw, start: int, end: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and where it ends."""
    if start < end and data[start] < 0x80:  # nearly all of them
        return data[start], start + 1
    value = shift = 0
    for place in range(start, min(end, start + _VARINT_BYTES)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 2**64:
                raise ProtobufError("a number of more than 64 bits")
            return value, place + 1
        shift += 7
    raise ProtobufError("a number that does not end")


def signed(value: int) -> int:
    """64 bits as the type int64 means them."""
    return value - 2**64 if value >= 2**63 else value


def write_varint(value: int) -> bytes:
    """A number of 64 bits, negative ones as their complement."""
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_bytes(number: int, value: bytes) -> bytes:
    return write_varint(number << 3 | BYTES) + write_varint(len(value)) + value


HEAD_BYTES, FOOT_BYTES = 12, 4
FRAMING_BYTES = HEAD_BYTES + FOOT_BYTES

_HEAD = struct.Struct("<QI")
_FOOT = struct.Struct("<I")
_MASK = 0xA282EAD8  # the format's own: a checksum of bytes that hold checksums is weak


@dataclass(frozen=True)
class TfRecordFrame:
    """A range of a shard: a record, or the reason why there is none."""

    offset: int
    size: int  # with the lengths and checksums around the record
    record: bytes = b""
    reason: str | None = None


def walk(file: BinaryIO, total: int) -> Iterator[TfRecordFrame]:
    """All frames of an open shard of `total` bytes; together they cover it."""
    offset = 0
    while offset < total:
        frame = _next(file, offset, total - offset)
        yield frame
        offset += frame.size


def _next(file: BinaryIO, offset: int, left: int) -> TfRecordFrame:
    head = file.read(HEAD_BYTES)
    try:
        length = _length(head)
    except BadContentError as error:
        return TfRecordFrame(
            offset, left, reason=f"{error}; the {left} bytes from here on are lost"
        )
    size = length + FRAMING_BYTES
    if size > left:
        return TfRecordFrame(offset, left, reason=_cut(size, left))
    if length > MAX_RECORD_BYTES:
        file.seek(length + FOOT_BYTES, 1)
        return TfRecordFrame(offset, size, reason=_too_long(length))
    record = file.read(length)
    foot = file.read(FOOT_BYTES)
    if len(foot) < FOOT_BYTES:  # the file became shorter since it was measured
        return TfRecordFrame(offset, left, reason=_cut(size, HEAD_BYTES + len(record) + len(foot)))
    try:
        _check(record, foot)
    except BadContentError as error:
        return TfRecordFrame(offset, size, reason=str(error))
    return TfRecordFrame(offset, size, record)


def _cut(size: int, left: int) -> str:
    return f"cut in the middle: the record takes {size} bytes, {left} are left"


def _too_long(length: int) -> str:
    return f"a record of {length} bytes, at most {MAX_RECORD_BYTES} are read"


def unframed(raw: bytes) -> memoryview:
    """The record in a frame that was complete when the shard was indexed."""
    frame = np.frombuffer(raw, np.uint8)  # the only view that the checksum takes
    length = _length(raw[:HEAD_BYTES])
    if length + FRAMING_BYTES != len(frame):
        raise BadContentError(f"its length is {length}, {len(frame) - FRAMING_BYTES} was indexed")
    record = frame[HEAD_BYTES : HEAD_BYTES + length]
    _check(record, raw[HEAD_BYTES + length :])
    return record.data


def _length(head: bytes) -> int:
    if len(head) < HEAD_BYTES:
        raise BadContentError(f"cut in the middle of a length: {len(head)} of {HEAD_BYTES} bytes")
    length: int
    length, crc = _HEAD.unpack(head)
    if crc != masked_crc(head[:8]):
        raise BadContentError("the checksum of its length is wrong")
    return length


def _check(record: bytes | ByteArray, foot: bytes) -> None:
    if _FOOT.unpack(foot)[0] != masked_crc(record):
        raise BadContentError("the checksum of its bytes is wrong")
    if len(record) == 0:
        raise BadContentError("it is empty: a record of 0 bytes")


def framed(record: bytes) -> list[bytes]:
    """A record with all that goes around it, to be written one after the other."""
    if not 0 < len(record) <= MAX_RECORD_BYTES:
        raise BadContentError(_too_long(len(record)) if record else "a record of 0 bytes")
    length = len(record).to_bytes(8, "little")
    return [length, _FOOT.pack(masked_crc(length)), record, _FOOT.pack(masked_crc(record))]


def masked_crc(data: bytes | ByteArray) -> int:
    """CRC32C, rotated and shifted as the format wants it."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def compression(start: bytes) -> str | None:
    """What a shard is compressed with, judged by its first bytes; None for a plain one."""
    if len(start) < 2 or (
        len(start) >= HEAD_BYTES and _HEAD.unpack(start[:HEAD_BYTES])[1] == masked_crc(start[:8])
    ):
        return None
    if start[:2] == b"\x1f\x8b":
        return "gzip"
    # A zlib stream: deflate with a window of 32 KiB, and a multiple of 31 as its first number.
    return "zlib" if start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0 else None


_BYTE_STRINGS, _FLOATS, _INTEGERS = 1, 2, 3
_LISTS = {_BYTE_STRINGS: "byte strings", _FLOATS: "floats", _INTEGERS: "integers"}
_MOST_FEATURES = 1000  # the reference has 16
_MOST_VALUES = 10_000  # of one feature
_MOST_FIELDS = 16  # of a message that has one or two
_MOST_NAME_BYTES = 256


class Features:
    """The features of one Example that have one of these names; a missing one is an empty list."""

    def __init__(self, data: Raw, names: Container[str]) -> None:
        self.data = data
        self._spans: dict[str, Span] = {}
        try:
            for features in messages(data, (0, len(data)), 1, _MOST_FIELDS):
                for entry in messages(data, features, 1, _MOST_FEATURES):
                    self._add(entry, names)
        except ProtobufError as error:
            raise BadContentError(f"not a tf.train.Example: {error}") from error

    def _add(self, entry: Span, names: Container[str]) -> None:
        # Writers put the name first, so an entry that nobody asked for is passed over at once.
        number, _, start, end = next(fields(self.data, entry, _MOST_FIELDS), (0, 0, 0, 0))
        if number != 1:
            start, end = _each_once(self.data, entry).get(1, (0, 0))
        name = str(self.data[start : min(end, start + _MOST_NAME_BYTES)], "utf-8", "replace")
        if name not in names:
            return
        if name in self._spans:
            raise BadContentError(f"the field {name} is given twice")
        self._spans[name] = _each_once(self.data, entry).get(2, (0, 0))

    def byte_strings(self, name: str) -> list[Span]:
        with _naming(name):
            return list(messages(self.data, self._list(name, _BYTE_STRINGS), 1, _MOST_VALUES))

    def floats(self, name: str) -> list[float]:
        """Packed or one by one."""
        values: list[float] = []
        with _naming(name):
            for kind, start, end in self._numbers(name, _FLOATS):
                if kind not in (BYTES, FIXED32) or (end - start) % 4:
                    raise ProtobufError(f"a float of the wire type {kind} in {end - start} bytes")
                _check_count(len(values) + (end - start) // 4)
                values += struct.unpack(f"<{(end - start) // 4}f", self.data[start:end])
        return values

    def integers(self, name: str) -> list[int]:
        """Packed or one by one."""
        values: list[int] = []
        with _naming(name):
            for kind, start, end in self._numbers(name, _INTEGERS):
                if kind not in (BYTES, VARINT):
                    raise ProtobufError(f"an integer of the wire type {kind}")
                while start < end:
                    value, start = varint(self.data, start, end)
                    values.append(signed(value))
                    _check_count(len(values))
        return values

    def _numbers(self, name: str, kind: int) -> Iterator[tuple[int, int, int]]:
        for number, wire_type, start, end in fields(
            self.data, self._list(name, kind), _MOST_VALUES
        ):
            if number == 1:
                yield wire_type, start, end

    def _list(self, name: str, kind: int) -> Span:
        lists = _each_once(self.data, self._spans.get(name, (0, 0)))
        others = [_LISTS[other] for other in _LISTS if other in lists and other != kind]
        if others:
            raise BadContentError(f"the field {name} holds {others[0]}, not {_LISTS[kind]}")
        return lists.get(kind, (0, 0))


def _each_once(data: Raw, span: Span) -> dict[int, Span]:
    """The fields of a message that has each of them once, all of them messages."""
    found: dict[int, Span] = {}
    for number, kind, start, end in fields(data, span, _MOST_FIELDS):
        if number > _INTEGERS:
            continue  # unknown to this schema: a newer one's
        if number in found or kind != BYTES:
            raise ProtobufError(f"field {number} is given twice, or of the wire type {kind}")
        found[number] = (start, end)
    return found


def _check_count(values: int) -> None:
    if values > _MOST_VALUES:
        raise ProtobufError(f"more than {_MOST_VALUES} values")


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except ProtobufError as error:
        raise BadContentError(f"the field {name} cannot be read: {error}") from error


def write_example(features: Mapping[str, bytes]) -> bytes:
    """An Example of features that the three functions below made, in the order of their names."""
    entries = [
        write_bytes(1, write_bytes(1, name.encode()) + write_bytes(2, features[name]))
        for name in sorted(features)
    ]
    return write_bytes(1, b"".join(entries))


def byte_strings(*values: bytes) -> bytes:
    return write_bytes(_BYTE_STRINGS, b"".join(write_bytes(1, value) for value in values))


def floats(*values: float) -> bytes:
    packed = struct.pack(f"<{len(values)}f", *values)
    return write_bytes(_FLOATS, write_bytes(1, packed) if values else b"")


def integers(*values: int) -> bytes:
    packed = b"".join(write_varint(value) for value in values)
    return write_bytes(_INTEGERS, write_bytes(1, packed) if values else b"")
