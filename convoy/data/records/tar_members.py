"""The members of a plain tar file and where their bytes lie: ustar, PAX and GNU long names.

Python's own reader believes the sizes it finds: some send it back to where it was, or let it
read all of the file at once. Here every number is checked before anything follows from it.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

BLOCK = 512

_MOST_HEADER_BYTES = 2**16  # of a long name, or of a PAX header
_CHUNK = 2**18
_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_KIND = slice(156, 157)
_MAGIC = slice(257, 263)
_PREFIX = slice(345, 500)

_FILES = (b"0", b"\0", b"7")
_WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes
_ABOUT_NEXT = (b"x", b"X", b"g", b"L", b"K")
_PACKERS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
_OCTAL = re.compile(rb"[0-7]*")
_LENGTH = re.compile(rb"([0-9]{1,6}) ")
_MOST_DIGITS = 18


class Member(NamedTuple):
    """One entry of a tar file."""

    name: bytes
    start: int  # of its first header
    offset: int  # of its data
    size: int
    is_file: bool


class DamageError(Exception):
    """From here on the file cannot be understood."""

    def __init__(self, offset: int, reason: str, *, behind_end: bool = False) -> None:
        super().__init__(reason)
        self.offset = offset
        self.behind_end = behind_end  # all members before it are whole


class PackedError(Exception):
    """A compressed file: there is no way to its middle but through all that comes before."""


def members(stream: BinaryIO, total: int) -> Iterator[Member]:
    """All members of a file of `total` bytes; DamageError where it does not end as it should."""
    _refuse_packed(_take(stream, 0, min(8, total)))
    at, told = 0, _Told(0)
    while (header := _header(stream, at, total)) is not None:
        kind, data = header[_KIND], at + BLOCK
        size = _number(header[_SIZE], at)
        if kind in _ABOUT_NEXT:
            told.hear(kind, _about_next(stream, data, size, total), at)
            at = data + _padded(size)
            continue
        if told.is_sparse or kind == b"S":
            raise DamageError(told.start, "a sparse member, which is not read")
        name = _name(header) if told.name is None else told.name
        size = size if told.size is None else told.size
        has_data = kind not in _WITHOUT_DATA and not (kind == b"\0" and name.endswith(b"/"))
        if has_data and size > total - data:
            left = total - data
            raise DamageError(told.start, f"cut in a member of {size} bytes: {left} are left")
        yield Member(name, told.start, data, size, has_data and kind in _FILES)
        at = data + _padded(size) if has_data else data
        told = _Told(at)
    if told.start != at:
        raise DamageError(told.start, "a header of a member that does not follow")


class _Told:
    """What special headers say about the member that follows them."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.name: bytes | None = None
        self.size: int | None = None
        self.is_sparse = False

    def hear(self, kind: bytes, text: bytes, at: int) -> None:
        if kind == b"L":
            self.name = text.partition(b"\0")[0]
        if kind not in (b"x", b"X"):
            return
        for key, value in _records(text, at):
            if key == b"path":
                self.name = value
            elif key == b"size":
                self.size = _decimal(value, at)
            elif key.startswith(b"GNU.sparse"):
                self.is_sparse = True


def _header(stream: BinaryIO, at: int, total: int) -> bytes | None:
    """The block at `at`; None for the end mark, behind which nothing but zeros may follow."""
    left = total - at
    if left <= 0:
        raise DamageError(total, "it has no end mark: cut between two members, or not finished")
    if left < BLOCK:
        raise DamageError(at, f"cut in a header: {left} bytes are left")
    header = _take(stream, at, BLOCK)
    if header == bytes(BLOCK):
        _refuse_what_follows(stream, at, total)
        return None
    # Some old writers summed signed bytes.
    told = _number(header[_CHECKSUM], at)
    others = header[: _CHECKSUM.start] + b" " * 8 + header[_CHECKSUM.stop :]
    high = sum(byte > 127 for byte in others) if told != sum(others) else 0
    if told != sum(others) - 256 * high:
        raise DamageError(at, f"no header of a member, or a damaged one: {left} bytes are left")
    return header


def _refuse_what_follows(stream: BinaryIO, at: int, total: int) -> None:
    for start in range(at, total, _CHUNK):
        if _take(stream, start, min(_CHUNK, total - start)).strip(b"\0"):
            reason = f"{total - at} bytes follow the end mark; were two files joined?"
            raise DamageError(at, reason, behind_end=True)


def _about_next(stream: BinaryIO, data: int, size: int, total: int) -> bytes:
    if size > _MOST_HEADER_BYTES:
        raise DamageError(data, f"a header of {size} bytes, at most {_MOST_HEADER_BYTES} are read")
    if size > total - data:
        raise DamageError(data, f"cut in a header of {size} bytes: {total - data} are left")
    return _take(stream, data, size)


def _records(text: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """PAX: `22 path=0001.jpg\\n`, the length counting all of itself."""
    start = 0
    while start < len(text) and text[start]:
        length = _LENGTH.match(text, start)
        end = start + int(length[1]) if length else 0
        if length is None or end <= length.end() or text[end - 1 : end] != b"\n":
            raise DamageError(at, "a PAX header that is none")
        key, _, value = text[length.end() : end - 1].partition(b"=")
        yield key, value
        start = end


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[_PREFIX].partition(b"\0")[0]
    # GNU's own form keeps other things in that place.
    return prefix + b"/" + name if prefix and header[_MAGIC] == b"ustar\0" else name


def _number(field: bytes, at: int) -> int:
    """Octal digits, or for large numbers a mark and plain bytes."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0")
    if not _OCTAL.fullmatch(digits):
        raise DamageError(at, "a header with a number that is none")
    return int(digits or b"0", 8)


def _decimal(value: bytes, at: int) -> int:
    if not value.isdigit() or len(value) > _MOST_DIGITS:
        raise DamageError(at, "a PAX header with a number that is none")
    return int(value)


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _take(stream: BinaryIO, at: int, size: int) -> bytes:
    stream.seek(at)
    taken = stream.read(size)
    if len(taken) < size:
        raise DamageError(at, "it became shorter while it was read")
    return taken


def _refuse_packed(begin: bytes) -> None:
    for mark, packer in _PACKERS.items():
        if begin.startswith(mark):
            raise PackedError(packer)
