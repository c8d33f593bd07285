"""tf.train.Example without TensorFlow: named features, each a list of byte strings or of numbers.

    Example { 1: Features { 1: Entry { 1: name, 2: Feature { 1 bytes | 2 floats | 3 integers } } } }

Only features that are asked for are read, and strictly: one given twice, or of another type than
expected, is refused by its name. All others are passed over.
"""

import struct
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager

from convoy.data.records.wire import (
    BYTES,
    FIXED32,
    VARINT,
    Raw,
    Span,
    WireError,
    fields,
    messages,
    signed,
    varint,
    write_bytes,
    write_varint,
)

_BYTE_STRINGS, _FLOATS, _INTEGERS = 1, 2, 3
_CALLED = {_BYTE_STRINGS: "byte strings", _FLOATS: "floats", _INTEGERS: "integers"}
_MOST_FEATURES = 1000  # the reference has 16
_MOST_VALUES = 10_000  # of one feature
_MOST_FIELDS = 16  # of a message that has one or two
_MOST_NAME_BYTES = 256


class BadExampleError(ValueError):
    """Why a record cannot be used."""


class Features:
    """The features of one Example that have one of these names; a missing one is an empty list."""

    def __init__(self, data: Raw, names: Container[str]) -> None:
        self._data = data
        self._found: dict[str, Span] = {}
        try:
            for features in messages(data, (0, len(data)), 1, _MOST_FIELDS):
                for entry in messages(data, features, 1, _MOST_FEATURES):
                    self._add(entry, names)
        except WireError as error:
            raise BadExampleError(f"not a tf.train.Example: {error}") from error

    def _add(self, entry: Span, names: Container[str]) -> None:
        # Writers put the name first, so an entry that nobody asked for is passed over at once.
        number, _, start, end = next(fields(self._data, entry, _MOST_FIELDS), (0, 0, 0, 0))
        if number != 1:
            start, end = _each_once(self._data, entry).get(1, (0, 0))
        name = str(self._data[start : min(end, start + _MOST_NAME_BYTES)], "utf-8", "replace")
        if name not in names:
            return
        if name in self._found:
            raise BadExampleError(f"the field {name} is given twice")
        self._found[name] = _each_once(self._data, entry).get(2, (0, 0))

    def byte_strings(self, name: str) -> list[Span]:
        """Where they lie."""
        with _naming(name):
            return list(messages(self._data, self._list(name, _BYTE_STRINGS), 1, _MOST_VALUES))

    def floats(self, name: str) -> list[float]:
        """Packed or one by one."""
        values: list[float] = []
        with _naming(name):
            for kind, start, end in self._numbers(name, _FLOATS):
                if kind not in (BYTES, FIXED32) or (end - start) % 4:
                    raise WireError(f"a float of the wire type {kind} in {end - start} bytes")
                _check_count(len(values) + (end - start) // 4)
                values += struct.unpack(f"<{(end - start) // 4}f", self._data[start:end])
        return values

    def integers(self, name: str) -> list[int]:
        """Packed or one by one."""
        values: list[int] = []
        with _naming(name):
            for kind, start, end in self._numbers(name, _INTEGERS):
                if kind not in (BYTES, VARINT):
                    raise WireError(f"an integer of the wire type {kind}")
                while start < end:
                    value, start = varint(self._data, start, end)
                    values.append(signed(value))
                    _check_count(len(values))
        return values

    def _numbers(self, name: str, kind: int) -> Iterator[tuple[int, int, int]]:
        for number, wire_type, start, end in fields(
            self._data, self._list(name, kind), _MOST_VALUES
        ):
            if number == 1:
                yield wire_type, start, end

    def _list(self, name: str, kind: int) -> Span:
        lists = _each_once(self._data, self._found.get(name, (0, 0)))
        others = [_CALLED[other] for other in _CALLED if other in lists and other != kind]
        if others:
            raise BadExampleError(f"the field {name} holds {others[0]}, not {_CALLED[kind]}")
        return lists.get(kind, (0, 0))


def _each_once(data: Raw, span: Span) -> dict[int, Span]:
    """The fields of a message that has each of them once, all of them messages."""
    found: dict[int, Span] = {}
    for number, kind, start, end in fields(data, span, _MOST_FIELDS):
        if number > _INTEGERS:
            continue  # unknown to this schema: a newer one's
        if number in found or kind != BYTES:
            raise WireError(f"field {number} is given twice, or of the wire type {kind}")
        found[number] = (start, end)
    return found


def _check_count(values: int) -> None:
    if values > _MOST_VALUES:
        raise WireError(f"more than {_MOST_VALUES} values")


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise BadExampleError(f"the field {name} cannot be read: {error}") from error


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
