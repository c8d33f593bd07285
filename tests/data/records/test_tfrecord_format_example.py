"""tf.train.Example: reading valid messages, and errors that name the field."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.data.records.record import BadContentError
from convoy.data.records.tfrecord_format import (
    FIXED32,
    FIXED64,
    VARINT,
    Features,
    ProtobufError,
    bytes_list,
    float_list,
    int64_list,
    iter_fields,
    read_varint,
    write_bytes,
    write_example,
    write_varint,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(width=32, allow_nan=False)


def field(number: int, wire_type: int, value: bytes) -> bytes:
    return write_varint(number << 3 | wire_type) + value


def entry(name: str, feature: bytes) -> bytes:
    return write_bytes(1, write_bytes(1, name.encode()) + write_bytes(2, feature))


def error_message(data: bytes, name: str = "a") -> str:
    """Return the error of parsing the Example or of reading the feature."""
    with pytest.raises(BadContentError) as caught:
        Features(data, {name}).int64_list(name)
    return str(caught.value)


@given(
    st.lists(st.binary(max_size=200), max_size=5),
    st.lists(INT64, max_size=20),
    st.lists(FLOAT, max_size=20),
)
def test_features_are_read_back_as_written(
    strings: list[bytes], ints: list[int], floats: list[float]
) -> None:
    data = write_example(
        {"s": bytes_list(*strings), "i": int64_list(*ints), "f": float_list(*floats)}
    )
    features = Features(data, {"s", "i", "f"})

    assert [data[start:end] for start, end in features.bytes_list("s")] == strings
    assert features.int64_list("i") == ints
    assert features.float_list("f") == floats


def test_a_memoryview_is_read_like_bytes() -> None:
    data = memoryview(write_example({"i": int64_list(5), "f": float_list(0.5)}))
    features = Features(data, {"i", "f"})

    assert (features.int64_list("i"), features.float_list("f")) == ([5], [0.5])


def test_unpacked_numbers_are_read() -> None:
    ints = b"".join(field(1, VARINT, write_varint(value)) for value in (7, -1))
    floats = b"".join(field(1, FIXED32, struct.pack("<f", value)) for value in (0.5, -2))
    both = write_bytes(1, entry("i", write_bytes(3, ints)) + entry("f", write_bytes(2, floats)))
    features = Features(both, {"i", "f"})

    assert features.int64_list("i") == [7, -1]
    assert features.float_list("f") == [0.5, -2]


def test_packed_and_unpacked_numbers_are_joined() -> None:
    values = write_bytes(1, write_varint(1)) + field(1, VARINT, write_varint(2))
    data = write_bytes(1, entry("i", write_bytes(3, values)))

    assert Features(data, {"i"}).int64_list("i") == [1, 2]


def test_features_of_two_messages_are_joined() -> None:
    data = write_example({"a": int64_list(1)}) + write_example({"b": int64_list(2)})
    features = Features(data, {"a", "b"})

    assert (features.int64_list("a"), features.int64_list("b")) == ([1], [2])


def test_a_value_may_come_before_its_name() -> None:
    swapped = write_bytes(1, write_bytes(2, int64_list(4)) + write_bytes(1, b"a"))

    assert Features(write_bytes(1, swapped), {"a"}).int64_list("a") == [4]


def test_unknown_fields_are_skipped() -> None:
    unknown = write_bytes(9, b"newer") + field(10, VARINT, b"\x01") + field(11, FIXED64, bytes(8))
    known = write_bytes(1, write_bytes(1, b"a") + unknown + write_bytes(2, unknown + int64_list(3)))
    data = unknown + write_bytes(1, known + unknown)

    assert Features(data, {"a"}).int64_list("a") == [3]


def test_features_that_are_not_requested_are_not_read() -> None:
    data = write_bytes(1, entry("odd", b"\xff\xff") + entry("a", int64_list(3)))

    assert Features(data, {"a"}).int64_list("a") == [3]
    assert "the field odd cannot be read" in error_message(data, "odd")


def test_a_missing_feature_has_no_values() -> None:
    features = Features(write_example({"a": int64_list()}), {"a", "b", "c"})

    assert features.int64_list("a") == features.int64_list("b") == features.bytes_list("c") == []
    assert Features(b"", {"a"}).float_list("a") == []
    assert Features(write_bytes(1, entry("a", b"")), {"a"}).float_list("a") == []


def test_a_duplicate_feature_is_refused_with_its_name() -> None:
    data = write_example({"a": int64_list(1)}) + write_example({"a": int64_list(2)})

    assert error_message(data) == "the field a appears twice"


def test_a_list_of_another_type_is_refused_with_its_name() -> None:
    data = write_example({"a": bytes_list(b"7")})

    assert error_message(data) == "the field a contains byte strings, not integers"
    assert error_message(write_bytes(1, entry("a", float_list(1) + int64_list(1)))) == (
        "the field a contains floats, not integers"
    )


@pytest.mark.parametrize(
    ("feature", "reason"),
    [
        (write_bytes(3, write_bytes(1, b"\x80")), "an unterminated varint"),
        (write_bytes(3, write_bytes(1, b"\xff" * 10 + b"\x01")), "an unterminated varint"),
        (write_bytes(3, write_bytes(1, b"\xff" * 9 + b"\x7f")), "more than 64 bits"),
        (write_bytes(3, field(1, FIXED64, bytes(8))), "an integer with wire type 1"),
        (write_bytes(3, write_bytes(1, bytes(10_001))), "more than 10000 values"),
        (write_bytes(3, field(1, VARINT, b"\0") * 10_001), "more than 10000 fields"),
        (int64_list(1) + int64_list(2), "appears twice"),
        (field(3, VARINT, b"\0"), "wire type 0"),
        (field(3, 3, b""), "a field with wire type 3"),
        (field(0, VARINT, b"\0"), "a field with the number 0"),
        (b"\x1a\x05\x00", "a field of 5 bytes, but only 1 remain"),
    ],
)
def test_an_invalid_list_is_refused_with_its_name(feature: bytes, reason: str) -> None:
    message = error_message(write_bytes(1, entry("a", feature)))

    assert message.startswith("the field a cannot be read: ")
    assert reason in message


@pytest.mark.parametrize(
    "feature",
    [
        write_bytes(2, write_bytes(1, bytes(5))),
        write_bytes(2, field(1, FIXED64, bytes(8))),
        write_bytes(2, field(1, VARINT, b"\0")),
        write_bytes(2, write_bytes(1, bytes(4 * 10_001))),
    ],
    ids=["half a float", "double", "integer", "too many"],
)
def test_invalid_floats_are_refused_with_their_name(feature: bytes) -> None:
    with pytest.raises(BadContentError, match="the field a cannot be read"):
        Features(write_bytes(1, entry("a", feature)), {"a"}).float_list("a")


def test_a_number_in_place_of_a_byte_string_is_refused() -> None:
    data = write_bytes(1, entry("a", write_bytes(1, field(1, FIXED32, b"abcd"))))

    with pytest.raises(BadContentError, match="the field a cannot be read: field 1 has wire"):
        Features(data, {"a"}).bytes_list("a")


@pytest.mark.parametrize(
    "data",
    [
        b"not an example",
        write_example({"a": int64_list(1)})[:-1],
        field(1, VARINT, b"\x05"),
        write_bytes(1, field(1, VARINT, b"\x05")),
        write_bytes(1, write_bytes(1, b"\x0a\x7f")),
        write_bytes(1, write_bytes(1, b"") * 1001),
        write_bytes(1, b"") * 17,
        write_bytes(1, write_bytes(1, write_bytes(1, b"a") * 2)),
    ],
)
def test_bytes_that_are_not_an_example_are_refused(data: bytes) -> None:
    assert error_message(data).startswith("not a tf.train.Example: ")


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_raise_the_documented_error(data: bytes) -> None:
    try:
        features = Features(data, {"", "a"})
        features.int64_list("")
        features.float_list("")
        features.bytes_list("")
    except BadContentError:
        pass


@given(INT64)
def test_integers_are_read_back_as_written(value: int) -> None:
    written = write_varint(value)

    assert len(written) <= 10
    assert read_varint(written, 0, len(written)) == (value % 2**64, len(written))
    assert Features(write_example({"i": int64_list(value)}), {"i"}).int64_list("i") == [value]


def test_a_varint_is_not_read_beyond_its_message() -> None:
    with pytest.raises(ProtobufError, match="unterminated"):
        read_varint(b"\x80\x01", 0, 1)
    with pytest.raises(ProtobufError, match="unterminated"):
        read_varint(b"\x01", 1, 1)


def test_a_length_that_overflows_is_refused() -> None:
    with pytest.raises(ProtobufError, match="but only 0 remain"):
        list(iter_fields(b"\x0a" + write_varint(2**64 - 1), (0, 11), 5))
