"""Protocol-buffer messages as bytes: just enough to read and write one fixed schema.

Comes in: bytes of unknown origin. Goes out: places and numbers, or WireError. Nothing is
allocated by what a length claims, and no message may have more fields than its reader allows.
"""

from collections.abc import Iterator

Raw = bytes | memoryview
Span = tuple[int, int]  # from, to
Field = tuple[int, int, int, int]  # number, wire type, from, to

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_VARINT_BYTES = 10  # of 64 bits, seven in each


class WireError(ValueError):
    """Bytes that are no such message."""


def fields(data: Raw, span: Span, most: int) -> Iterator[Field]:
    """Every field of the message between two places."""
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
            raise WireError(f"a field of the wire type {kind}")
        if stop > end:
            raise WireError(f"a field of {stop - start} bytes where {end - start} are left")
        if not 0 < number < 2**29:
            raise WireError(f"a field with the number {number}")
        count += 1
        if count > most:
            raise WireError(f"more than {most} fields in one message")
        yield number, kind, start, stop
        start = stop


def messages(data: Raw, span: Span, wanted: int, most: int) -> Iterator[Span]:
    """The values of one field that holds messages or byte strings, as often as it is given."""
    for number, kind, start, end in fields(data, span, most):
        if number == wanted:
            if kind != BYTES:
                raise WireError(f"field {number} of the wire type {kind}, not {BYTES}")
            yield start, end


def varint(data: Raw, start: int, end: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and the place behind it."""
    if start < end and data[start] < 0x80:  # nearly all of them
        return data[start], start + 1
    value = shift = 0
    for at in range(start, min(end, start + _VARINT_BYTES)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 2**64:
                raise WireError("a number of more than 64 bits")
            return value, at + 1
        shift += 7
    raise WireError("a number that does not end")


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
    """A field that holds byte strings or another message."""
    return write_varint(number << 3 | BYTES) + write_varint(len(value)) + value
