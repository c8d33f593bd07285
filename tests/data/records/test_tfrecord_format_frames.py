"""Frames of a shard: reading, and reporting damage."""

import gzip
import io
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.data.records import tfrecord_format
from convoy.data.records.record import MAX_RECORD_BYTES, BadContentError
from convoy.data.records.tfrecord_format import FRAMING_BYTES, TfRecordFrame

RECORDS = [b"first", b"the second one", b"3"]


def shard(*records: bytes) -> bytes:
    return b"".join(b"".join(tfrecord_format.frame_record(record)) for record in records)


def read_frames(data: bytes) -> list[TfRecordFrame]:
    return list(tfrecord_format.iter_frames(io.BytesIO(data), len(data)))


def frame_header(length: int) -> bytes:
    """The header of a record of any length, with a valid checksum."""
    encoded = length.to_bytes(8, "little")
    return encoded + tfrecord_format.masked_crc(encoded).to_bytes(4, "little")


def test_the_checksum_matches_the_published_value() -> None:
    # CRC32C of "123456789" is e3069283; TFRecord rotates it by 15 bits and adds a constant.
    rotated = (0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF

    assert tfrecord_format.masked_crc(b"123456789") == (rotated + 0xA282EAD8) % 2**32


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6))
def test_framed_records_are_read_back(records: list[bytes]) -> None:
    found = read_frames(shard(*records))

    assert [frame.record for frame in found] == records
    assert all(frame.reason is None for frame in found)
    assert sum(frame.size for frame in found) == sum(
        len(record) + FRAMING_BYTES for record in records
    )


def test_truncation_inside_a_record_leaves_complete_records_and_one_fault() -> None:
    data = shard(*RECORDS)[:-3]
    *complete, rest = read_frames(data)

    assert [frame.record for frame in complete] == RECORDS[:2]
    assert (rest.offset, rest.size) == (51, 14)
    assert rest.reason is not None
    assert "truncated" in rest.reason
    assert "17 bytes" in rest.reason
    assert "14 bytes" in rest.reason


def test_truncation_inside_a_length_leaves_one_fault() -> None:
    data = shard(*RECORDS) + b"1234567"
    rest = read_frames(data)[-1]

    assert rest.offset == len(data) - 7
    assert rest.reason is not None
    assert "truncated inside a length: 7 of 12 bytes" in rest.reason


@given(st.integers(0, len(shard(*RECORDS))))
def test_frames_cover_a_truncated_shard(size: int) -> None:
    data = shard(*RECORDS)[:size]
    found = read_frames(data)

    assert sum(frame.size for frame in found) == size
    assert sum(frame.reason is not None for frame in found) <= 1


def test_a_damaged_length_loses_the_rest_of_the_shard() -> None:
    data = bytearray(shard(*RECORDS))
    data[21] ^= 1  # the length of the second record
    first, rest = read_frames(bytes(data))

    assert first.record == RECORDS[0]
    assert rest.size == len(data) - 21
    assert rest.reason is not None
    assert "checksum of its length is wrong" in rest.reason
    assert f"{len(data) - 21} bytes" in rest.reason


@pytest.mark.parametrize("position", [21 + 12, 21 + 12 + 14], ids=["record", "checksum"])
def test_a_damaged_record_loses_only_itself(position: int) -> None:
    data = bytearray(shard(*RECORDS))
    data[position] ^= 0x10
    first, second, third = read_frames(bytes(data))

    assert (first.record, third.record) == (RECORDS[0], RECORDS[2])
    assert second.reason == "the checksum of its bytes is wrong"


def test_an_empty_record_is_a_fault() -> None:
    empty = frame_header(0) + tfrecord_format.masked_crc(b"").to_bytes(4, "little")
    found = read_frames(shard(b"a") + empty + shard(b"b"))

    assert [frame.record for frame in found] == [b"a", b"", b"b"]
    assert found[1].reason == "the record is empty (0 bytes)"


class CountingFile(io.BytesIO):
    """A file that records the largest read."""

    largest_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.largest_read = max(self.largest_read, -1 if size is None else size)
        return super().read(size)


@pytest.mark.parametrize("length", [2**20, MAX_RECORD_BYTES + 1, 2**63, 2**64 - 1])
def test_a_length_beyond_the_file_is_never_read(length: int) -> None:
    data = frame_header(length) + bytes(100)
    file = CountingFile(data)
    (found,) = tfrecord_format.iter_frames(file, len(data))

    assert file.largest_read == 12
    assert found.reason is not None
    assert f"truncated: the record has {length + FRAMING_BYTES} bytes" in found.reason


def test_a_record_above_the_limit_is_skipped_without_reading() -> None:
    length = MAX_RECORD_BYTES + 1
    file = CountingFile(frame_header(length))
    file.seek(length + FRAMING_BYTES)
    file.write(shard(b"next"))
    file.seek(0)
    first, second = tfrecord_format.iter_frames(file, length + FRAMING_BYTES + 20)

    assert first.reason == f"a record of {length} bytes; the limit is {MAX_RECORD_BYTES}"
    assert second.record == b"next"
    assert file.largest_read == 12


def test_a_file_that_became_shorter_is_truncated() -> None:
    data = shard(*RECORDS)
    found = list(tfrecord_format.iter_frames(io.BytesIO(data[:-2]), len(data)))

    assert [frame.reason is None for frame in found] == [True, True, False]
    assert "truncated" in str(found[-1].reason)


def test_a_frame_is_parsed_to_its_record() -> None:
    frame = np.frombuffer(shard(b"a record"), np.uint8)

    assert tfrecord_format.parse_frame(frame).tobytes() == b"a record"


@given(st.integers(0, len(shard(b"a record")) * 8 - 1))
def test_a_flipped_bit_anywhere_in_a_frame_is_detected(bit: int) -> None:
    frame = np.frombuffer(shard(b"a record"), np.uint8).copy()
    frame[bit // 8] ^= 1 << bit % 8

    with pytest.raises(BadContentError):
        tfrecord_format.parse_frame(frame)


def test_a_frame_of_another_length_is_refused() -> None:
    frame = np.frombuffer(shard(b"short") + bytes(3), np.uint8)

    with pytest.raises(BadContentError, match="its length is 5, but 8 was indexed"):
        tfrecord_format.parse_frame(frame)


@pytest.mark.parametrize("record", [b"", bytes(MAX_RECORD_BYTES + 1)], ids=["empty", "too long"])
def test_records_of_invalid_size_are_not_framed(record: bytes) -> None:
    with pytest.raises(BadContentError):
        tfrecord_format.frame_record(record)


def test_compression_is_detected_from_the_first_bytes() -> None:
    data = shard(*RECORDS)

    assert tfrecord_format.detect_compression(gzip.compress(data)) == "gzip"
    assert [
        tfrecord_format.detect_compression(zlib.compress(data, level)) for level in (1, 6, 9)
    ] == ["zlib"] * 3
    assert tfrecord_format.detect_compression(data) is None
    assert tfrecord_format.detect_compression(b"") is None


def test_a_length_that_looks_like_compression_is_a_length() -> None:
    assert tfrecord_format.detect_compression(frame_header(0x8B1F)) is None
    assert tfrecord_format.detect_compression(frame_header(0x9C78)) is None
