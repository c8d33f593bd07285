"""tf.train.Example: what is read of right ones, and the field that is named for wrong ones."""

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
    byte_strings,
    fields,
    floats,
    integers,
    signed,
    varint,
    write_bytes,
    write_example,
    write_varint,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(width=32, allow_nan=False)


def field(number: int, kind: int, value: bytes) -> bytes:
    return write_varint(number << 3 | kind) + value


def entry(name: str, feature: bytes) -> bytes:
    return write_bytes(1, write_bytes(1, name.encode()) + write_bytes(2, feature))


def complaint(data: bytes, name: str = "a") -> str:
    """Of whichever way of reading finds it."""
    with pytest.raises(BadContentError) as caught:
        Features(data, {name}).integers(name)
    return str(caught.value)


@given(
    st.lists(st.binary(max_size=200), max_size=5),
    st.lists(INT64, max_size=20),
    st.lists(FLOAT, max_size=20),
)
def test_what_was_written_is_read(
    strings: list[bytes], whole: list[int], broken: list[float]
) -> None:
    data = write_example({"s": byte_strings(*strings), "i": integers(*whole), "f": floats(*broken)})
    features = Features(data, {"s", "i", "f"})

    assert [data[start:end] for start, end in features.byte_strings("s")] == strings
    assert features.integers("i") == whole
    assert features.floats("f") == broken


def test_a_map_of_memory_is_read_like_bytes() -> None:
    data = memoryview(write_example({"i": integers(5), "f": floats(0.5)}))
    features = Features(data, {"i", "f"})

    assert (features.integers("i"), features.floats("f")) == ([5], [0.5])


def test_numbers_may_come_one_by_one() -> None:
    whole = b"".join(field(1, VARINT, write_varint(value)) for value in (7, -1))
    broken = b"".join(field(1, FIXED32, struct.pack("<f", value)) for value in (0.5, -2))
    both = write_bytes(1, entry("i", write_bytes(3, whole)) + entry("f", write_bytes(2, broken)))
    features = Features(both, {"i", "f"})

    assert features.integers("i") == [7, -1]
    assert features.floats("f") == [0.5, -2]


def test_packed_and_single_numbers_join() -> None:
    values = write_bytes(1, write_varint(1)) + field(1, VARINT, write_varint(2))
    data = write_bytes(1, entry("i", write_bytes(3, values)))

    assert Features(data, {"i"}).integers("i") == [1, 2]


def test_features_in_two_messages_join() -> None:
    data = write_example({"a": integers(1)}) + write_example({"b": integers(2)})
    features = Features(data, {"a", "b"})

    assert (features.integers("a"), features.integers("b")) == ([1], [2])


def test_a_value_may_come_before_its_name() -> None:
    swapped = write_bytes(1, write_bytes(2, integers(4)) + write_bytes(1, b"a"))

    assert Features(write_bytes(1, swapped), {"a"}).integers("a") == [4]


def test_unknown_fields_are_passed_over() -> None:
    unknown = write_bytes(9, b"newer") + field(10, VARINT, b"\x01") + field(11, FIXED64, bytes(8))
    known = write_bytes(1, write_bytes(1, b"a") + unknown + write_bytes(2, unknown + integers(3)))
    data = unknown + write_bytes(1, known + unknown)

    assert Features(data, {"a"}).integers("a") == [3]


def test_what_was_not_asked_for_is_not_read() -> None:
    data = write_bytes(1, entry("odd", b"\xff\xff") + entry("a", integers(3)))

    assert Features(data, {"a"}).integers("a") == [3]
    assert "the field odd cannot be read" in complaint(data, "odd")


def test_a_missing_feature_has_no_values() -> None:
    features = Features(write_example({"a": integers()}), {"a", "b", "c"})

    assert features.integers("a") == features.integers("b") == features.byte_strings("c") == []
    assert Features(b"", {"a"}).floats("a") == []
    assert Features(write_bytes(1, entry("a", b"")), {"a"}).floats("a") == []


def test_a_feature_given_twice_is_refused_by_name() -> None:
    data = write_example({"a": integers(1)}) + write_example({"a": integers(2)})

    assert complaint(data) == "the field a is given twice"


def test_a_list_of_another_type_is_refused_by_name() -> None:
    data = write_example({"a": byte_strings(b"7")})

    assert complaint(data) == "the field a holds byte strings, not integers"
    assert complaint(write_bytes(1, entry("a", floats(1) + integers(1)))) == (
        "the field a holds floats, not integers"
    )


@pytest.mark.parametrize(
    ("feature", "reason"),
    [
        (write_bytes(3, write_bytes(1, b"\x80")), "a number that does not end"),
        (write_bytes(3, write_bytes(1, b"\xff" * 10 + b"\x01")), "a number that does not end"),
        (write_bytes(3, write_bytes(1, b"\xff" * 9 + b"\x7f")), "more than 64 bits"),
        (write_bytes(3, field(1, FIXED64, bytes(8))), "an integer of the wire type 1"),
        (write_bytes(3, write_bytes(1, bytes(10_001))), "more than 10000 values"),
        (write_bytes(3, field(1, VARINT, b"\0") * 10_001), "more than 10000 fields"),
        (integers(1) + integers(2), "given twice"),
        (field(3, VARINT, b"\0"), "wire type 0"),
        (field(3, 3, b""), "a field of the wire type 3"),
        (field(0, VARINT, b"\0"), "a field with the number 0"),
        (b"\x1a\x05\x00", "a field of 5 bytes where 1 are left"),
    ],
)
def test_a_list_that_is_none_is_refused_with_its_name(feature: bytes, reason: str) -> None:
    said = complaint(write_bytes(1, entry("a", feature)))

    assert said.startswith("the field a cannot be read: ")
    assert reason in said


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
def test_floats_that_are_none_are_refused_with_their_name(feature: bytes) -> None:
    with pytest.raises(BadContentError, match="the field a cannot be read"):
        Features(write_bytes(1, entry("a", feature)), {"a"}).floats("a")


def test_a_number_in_the_place_of_a_byte_string_is_refused() -> None:
    data = write_bytes(1, entry("a", write_bytes(1, field(1, FIXED32, b"abcd"))))

    with pytest.raises(BadContentError, match="the field a cannot be read: field 1 of the wire"):
        Features(data, {"a"}).byte_strings("a")


@pytest.mark.parametrize(
    "data",
    [
        b"not an example",
        write_example({"a": integers(1)})[:-1],
        field(1, VARINT, b"\x05"),
        write_bytes(1, field(1, VARINT, b"\x05")),
        write_bytes(1, write_bytes(1, b"\x0a\x7f")),
        write_bytes(1, write_bytes(1, b"") * 1001),
        write_bytes(1, b"") * 17,
        write_bytes(1, write_bytes(1, write_bytes(1, b"a") * 2)),
    ],
)
def test_bytes_that_are_no_example_are_refused(data: bytes) -> None:
    assert complaint(data).startswith("not a tf.train.Example: ")


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        features = Features(data, {"", "a"})
        features.integers("")
        features.floats("")
        features.byte_strings("")
    except BadContentError:
        pass


@given(INT64)
def test_numbers_survive_the_wire(value: int) -> None:
    written = write_varint(value)

    assert len(written) <= 10
    assert varint(written, 0, len(written)) == (value % 2**64, len(written))
    assert signed(value % 2**64) == value


def test_a_number_never_reads_beyond_its_message() -> None:
    with pytest.raises(ProtobufError, match="does not end"):
        varint(b"\x80\x01", 0, 1)
    with pytest.raises(ProtobufError, match="does not end"):
        varint(b"\x01", 1, 1)


def test_a_length_that_wraps_around_is_refused() -> None:
    with pytest.raises(ProtobufError, match="where 0 are left"):
        list(fields(b"\x0a" + write_varint(2**64 - 1), (0, 11), 5))
