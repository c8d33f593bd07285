"""The TFRecord format without TensorFlow: protobuf, frames with checksums, tf.train.Example."""

import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import google_crc32c
import numpy as np

from convoy.data.records.index import ByteArray
from convoy.data.records.record import MAX_RECORD_BYTES, BadContentError

BytesLike = bytes | memoryview
Span = tuple[int, int]  # start, end
Field = tuple[int, int, int, int]  # number, wire type, start, end

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_VARINT_BYTES = 10  # 64 bits, 7 per byte


class ProtobufError(ValueError):
    """The bytes are not a valid protobuf message."""


def iter_fields(data: BytesLike, span: Span, max_fields: int) -> Iterator[Field]:
    start, end = span
    count = 0
    while start < end:
        tag, start = read_varint(data, start, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == BYTES:
            length, start = read_varint(data, start, end)
            stop = start + length
        elif wire_type == VARINT:
            _, stop = read_varint(data, start, end)
        elif wire_type in _WIDTHS:
            stop = start + _WIDTHS[wire_type]
        else:
            raise ProtobufError(f"a field with wire type {wire_type}")
        if stop > end:
            raise ProtobufError(f"a field of {stop - start} bytes, but only {end - start} remain")
        if not 0 < number < 2**29:
            raise ProtobufError(f"a field with the number {number}")
        count += 1
        if count > max_fields:
            raise ProtobufError(f"more than {max_fields} fields in one message")
        yield number, wire_type, start, stop
        start = stop


def iter_messages(fields: Iterable[Field]) -> Iterator[Span]:
    """Yield all values of field 1, which are messages or byte strings."""
    for number, wire_type, start, end in fields:
        if number == 1:
            if wire_type != BYTES:
                raise ProtobufError(f"field {number} has wire type {wire_type}, not {BYTES}")
            yield start, end


def read_varint(data: BytesLike, start: int, end: int) -> tuple[int, int]:
    """Read a number stored in 7 bits per byte; return it and its end."""
    if start < end and data[start] < 0x80:  # the common case
        return data[start], start + 1
    value = shift = 0
    for position in range(start, min(end, start + _VARINT_BYTES)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 2**64:
                raise ProtobufError("a varint of more than 64 bits")
            return value, position + 1
        shift += 7
    raise ProtobufError("an unterminated varint")


def write_varint(value: int) -> bytes:
    """Encode a 64-bit number; negative numbers in two's complement."""
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_bytes(number: int, value: bytes) -> bytes:
    return write_varint(number << 3 | BYTES) + write_varint(len(value)) + value


HEADER_BYTES, FOOTER_BYTES = 12, 4
FRAMING_BYTES = HEADER_BYTES + FOOTER_BYTES

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_MASK = 0xA282EAD8  # from the format: a CRC of data that contains CRCs is weak


@dataclass(frozen=True)
class TfRecordFrame:
    """A byte range of a shard: a record, or the reason why it is bad."""

    offset: int
    size: int  # including length and checksums
    record: bytes = b""
    reason: str | None = None


def iter_frames(file: BinaryIO, total: int) -> Iterator[TfRecordFrame]:
    """Yield the frames of an open shard of `total` bytes; together they cover it."""
    offset = 0
    while offset < total:
        frame = _read_frame(file, offset, total - offset)
        yield frame
        offset += frame.size


def _read_frame(file: BinaryIO, offset: int, left: int) -> TfRecordFrame:
    size = None
    try:
        length = _read_length(file.read(HEADER_BYTES))
        if length + FRAMING_BYTES > left:
            raise BadContentError(f"truncated: the record has {length + FRAMING_BYTES} bytes")
        size = length + FRAMING_BYTES
        if length > MAX_RECORD_BYTES:
            file.seek(length + FOOTER_BYTES, 1)
            raise BadContentError(_too_long_message(length))
        record = file.read(length)
        _check_payload(record, file.read(FOOTER_BYTES))
    except BadContentError as error:
        lost = f"; the remaining {left} bytes are lost" if size is None else ""
        return TfRecordFrame(offset, size or left, reason=f"{error}{lost}")
    return TfRecordFrame(offset, size, record)


def _too_long_message(length: int) -> str:
    return f"a record of {length} bytes; the limit is {MAX_RECORD_BYTES}"


def parse_frame(raw: bytes) -> memoryview:
    """Return the record in a frame that was complete when the shard was indexed."""
    frame = np.frombuffer(raw, np.uint8)  # the only view that google_crc32c accepts
    length = _read_length(raw[:HEADER_BYTES])
    if length + FRAMING_BYTES != len(frame):
        raise BadContentError(
            f"its length is {length}, but {len(frame) - FRAMING_BYTES} was indexed"
        )
    record = frame[HEADER_BYTES : HEADER_BYTES + length]
    _check_payload(record, raw[HEADER_BYTES + length :])
    return record.data


def _read_length(header: bytes) -> int:
    if len(header) < HEADER_BYTES:
        raise BadContentError(f"truncated inside a length: {len(header)} of {HEADER_BYTES} bytes")
    length: int
    length, crc = _HEADER.unpack(header)
    if crc != masked_crc(header[:8]):
        raise BadContentError("the checksum of its length is wrong")
    return length


def _check_payload(record: bytes | ByteArray, footer: bytes) -> None:
    if len(footer) < FOOTER_BYTES:
        raise BadContentError("truncated while it was read")
    if _FOOTER.unpack(footer)[0] != masked_crc(record):
        raise BadContentError("the checksum of its bytes is wrong")
    if len(record) == 0:
        raise BadContentError("the record is empty (0 bytes)")


def frame_record(record: bytes) -> list[bytes]:
    """Return a record with its length and checksums, as pieces to write in order."""
    if not 0 < len(record) <= MAX_RECORD_BYTES:
        raise BadContentError(
            _too_long_message(len(record)) if record else "the record is empty (0 bytes)"
        )
    length = len(record).to_bytes(8, "little")
    return [length, _FOOTER.pack(masked_crc(length)), record, _FOOTER.pack(masked_crc(record))]


def masked_crc(data: bytes | ByteArray) -> int:
    """CRC32C, rotated and masked as the format requires."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def detect_compression(first_bytes: bytes) -> str | None:
    """Detect the compression of a shard from its first bytes; None if it is not compressed."""
    if len(first_bytes) < 2 or (
        len(first_bytes) >= HEADER_BYTES
        and _HEADER.unpack(first_bytes[:HEADER_BYTES])[1] == masked_crc(first_bytes[:8])
    ):
        return None
    if first_bytes[:2] == b"\x1f\x8b":
        return "gzip"
    # A zlib stream: deflate with a 32 KiB window, and a first 16-bit number divisible by 31.
    return (
        "zlib"
        if first_bytes[0] == 0x78 and int.from_bytes(first_bytes[:2], "big") % 31 == 0
        else None
    )


_BYTE_STRINGS, _FLOATS, _INTEGERS = 1, 2, 3
_LISTS = {_BYTE_STRINGS: "byte strings", _FLOATS: "floats", _INTEGERS: "integers"}
_MAX_FEATURES = 1000  # the reference has 16
_MAX_VALUES = 10_000  # of one feature
_MAX_FIELDS = 16  # of a message that should have one or two
_MAX_NAME_BYTES = 256


class Features:
    """The features of one Example with the given names; a missing feature is an empty list."""

    def __init__(self, data: BytesLike, names: Container[str]) -> None:
        self.data = data
        self._spans: dict[str, Span] = {}
        try:
            for features in iter_messages(iter_fields(data, (0, len(data)), _MAX_FIELDS)):
                for entry in iter_messages(iter_fields(data, features, _MAX_FEATURES)):
                    self._add(entry, names)
        except ProtobufError as error:
            raise BadContentError(f"not a tf.train.Example: {error}") from error

    def _add(self, entry: Span, names: Container[str]) -> None:
        # Writers put the name first, so that unneeded entries are skipped immediately.
        number, _, start, end = next(iter_fields(self.data, entry, _MAX_FIELDS), (0, 0, 0, 0))
        if number != 1:
            start, end = _unique_fields(self.data, entry).get(1, (0, 0))
        name = str(self.data[start : min(end, start + _MAX_NAME_BYTES)], "utf-8", "replace")
        if name not in names:
            return
        if name in self._spans:
            raise BadContentError(f"the field {name} appears twice")
        self._spans[name] = _unique_fields(self.data, entry).get(2, (0, 0))

    def bytes_list(self, name: str) -> list[Span]:
        with _field_errors(name):
            return list(iter_messages(self._values(name, _BYTE_STRINGS)))

    def float_list(self, name: str) -> list[float]:
        """Read values that are packed or stored one by one, like `int64_list`."""
        values: list[float] = []
        with _field_errors(name):
            for _, wire_type, start, end in self._values(name, _FLOATS):
                if wire_type not in (BYTES, FIXED32) or (end - start) % 4:
                    raise ProtobufError(
                        f"a float with wire type {wire_type} in {end - start} bytes"
                    )
                _check_count(len(values) + (end - start) // 4)
                values += struct.unpack(f"<{(end - start) // 4}f", self.data[start:end])
        return values

    def int64_list(self, name: str) -> list[int]:
        values: list[int] = []
        with _field_errors(name):
            for _, wire_type, start, end in self._values(name, _INTEGERS):
                if wire_type not in (BYTES, VARINT):
                    raise ProtobufError(f"an integer with wire type {wire_type}")
                while start < end:
                    value, start = read_varint(self.data, start, end)
                    values.append(value - 2**64 if value >= 2**63 else value)
                    _check_count(len(values))
        return values

    def _values(self, name: str, list_type: int) -> Iterator[Field]:
        lists = _unique_fields(self.data, self._spans.get(name, (0, 0)))
        wrong = [_LISTS[number] for number in _LISTS if number in lists and number != list_type]
        if wrong:
            raise BadContentError(f"the field {name} contains {wrong[0]}, not {_LISTS[list_type]}")
        values = iter_fields(self.data, lists.get(list_type, (0, 0)), _MAX_VALUES)
        return (value for value in values if value[0] == 1)


def _unique_fields(data: BytesLike, span: Span) -> dict[int, Span]:
    """Return the fields of a message in which each appears once and is a message."""
    spans: dict[int, Span] = {}
    for number, wire_type, start, end in iter_fields(data, span, _MAX_FIELDS):
        if number > _INTEGERS:
            continue  # from a newer schema
        if number in spans or wire_type != BYTES:
            raise ProtobufError(f"field {number} appears twice, or has wire type {wire_type}")
        spans[number] = (start, end)
    return spans


def _check_count(values: int) -> None:
    if values > _MAX_VALUES:
        raise ProtobufError(f"more than {_MAX_VALUES} values")


@contextmanager
def _field_errors(name: str) -> Iterator[None]:
    """Add the name of the field to protobuf errors."""
    try:
        yield
    except ProtobufError as error:
        raise BadContentError(f"the field {name} cannot be read: {error}") from error


def write_example(features: Mapping[str, bytes]) -> bytes:
    """Encode an Example from features made by the three functions below, sorted by name."""
    entries = [
        write_bytes(1, write_bytes(1, name.encode()) + write_bytes(2, features[name]))
        for name in sorted(features)
    ]
    return write_bytes(1, b"".join(entries))


def bytes_list(*values: bytes) -> bytes:
    return write_bytes(_BYTE_STRINGS, b"".join(write_bytes(1, value) for value in values))


def float_list(*values: float) -> bytes:
    packed = struct.pack(f"<{len(values)}f", *values)
    return write_bytes(_FLOATS, write_bytes(1, packed) if values else b"")


def int64_list(*values: int) -> bytes:
    packed = b"".join(write_varint(value) for value in values)
    return write_bytes(_INTEGERS, write_bytes(1, packed) if values else b"")
