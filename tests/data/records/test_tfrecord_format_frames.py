"""Frames of a shard: whole ones, and what is said of damage."""

import gzip
import io
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.data.records import tfrecord_format as frames
from convoy.data.records.record import MAX_RECORD_BYTES, BadContentError
from convoy.data.records.tfrecord_format import FRAMING_BYTES, TfRecordFrame

RECORDS = [b"first", b"the second one", b"3"]


def shard(*records: bytes) -> bytes:
    return b"".join(b"".join(frames.framed(record)) for record in records)


def walked(data: bytes) -> list[TfRecordFrame]:
    return list(frames.walk(io.BytesIO(data), len(data)))


def longest_frame(length: int) -> bytes:
    """The head of a record of any length, its checksum right."""
    head = length.to_bytes(8, "little")
    return head + frames.masked_crc(head).to_bytes(4, "little")


def test_the_checksum_is_the_published_one() -> None:
    # The check value of CRC32C for "123456789" is e3069283; rotated by 15 and shifted by the mask.
    rotated = (0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF

    assert frames.masked_crc(b"123456789") == (rotated + 0xA282EAD8) % 2**32


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6))
def test_what_was_framed_is_walked(records: list[bytes]) -> None:
    found = walked(shard(*records))

    assert [frame.record for frame in found] == records
    assert all(frame.reason is None for frame in found)
    assert sum(frame.size for frame in found) == sum(
        len(record) + FRAMING_BYTES for record in records
    )


def test_a_cut_in_a_record_leaves_the_whole_ones_and_one_fault() -> None:
    data = shard(*RECORDS)[:-3]
    *whole, rest = walked(data)

    assert [frame.record for frame in whole] == RECORDS[:2]
    assert rest == TfRecordFrame(
        51, 14, reason="cut in the middle: the record takes 17 bytes, 14 are left"
    )


def test_a_cut_in_a_length_leaves_one_fault() -> None:
    data = shard(*RECORDS) + b"1234567"
    rest = walked(data)[-1]

    assert rest.offset == len(data) - 7
    assert rest.reason is not None
    assert "cut in the middle of a length: 7 of 12 bytes" in rest.reason


@given(st.integers(0, len(shard(*RECORDS))))
def test_every_cut_is_covered_by_frames(place: int) -> None:
    data = shard(*RECORDS)[:place]
    found = walked(data)

    assert sum(frame.size for frame in found) == place
    assert sum(frame.reason is not None for frame in found) <= 1


def test_a_wrong_length_loses_the_rest_of_the_shard() -> None:
    data = bytearray(shard(*RECORDS))
    data[21] ^= 1  # the length of the second record
    first, rest = walked(bytes(data))

    assert first.record == RECORDS[0]
    assert rest.size == len(data) - 21
    assert rest.reason is not None
    assert "checksum of its length is wrong" in rest.reason
    assert f"{len(data) - 21} bytes" in rest.reason


@pytest.mark.parametrize("place", [21 + 12, 21 + 12 + 14], ids=["record", "checksum"])
def test_a_wrong_record_loses_only_itself(place: int) -> None:
    data = bytearray(shard(*RECORDS))
    data[place] ^= 0x10
    first, second, third = walked(bytes(data))

    assert (first.record, third.record) == (RECORDS[0], RECORDS[2])
    assert second.reason == "the checksum of its bytes is wrong"


def test_a_record_without_bytes_is_a_fault() -> None:
    empty = longest_frame(0) + frames.masked_crc(b"").to_bytes(4, "little")
    found = walked(shard(b"a") + empty + shard(b"b"))

    assert [frame.record for frame in found] == [b"a", b"", b"b"]
    assert found[1].reason == "it is empty: a record of 0 bytes"


class Counting(io.BytesIO):
    """A file that knows the most it was ever asked for."""

    most = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.most = max(self.most, -1 if size is None else size)
        return super().read(size)


@pytest.mark.parametrize("length", [2**20, MAX_RECORD_BYTES + 1, 2**63, 2**64 - 1])
def test_a_length_beyond_the_file_is_never_read(length: int) -> None:
    data = longest_frame(length) + bytes(100)
    file = Counting(data)
    (found,) = frames.walk(file, len(data))

    assert file.most == 12
    assert found.reason == (
        f"cut in the middle: the record takes {length + FRAMING_BYTES} bytes, 112 are left"
    )


def test_a_record_above_the_limit_is_passed_over_unread() -> None:
    length = MAX_RECORD_BYTES + 1
    file = Counting(longest_frame(length))
    file.seek(length + FRAMING_BYTES)
    file.write(shard(b"next"))
    file.seek(0)
    first, second = frames.walk(file, length + FRAMING_BYTES + 20)

    assert first.reason == f"a record of {length} bytes, at most {MAX_RECORD_BYTES} are read"
    assert second.record == b"next"
    assert file.most == 12


def test_a_file_that_became_shorter_is_a_cut() -> None:
    data = shard(*RECORDS)
    found = list(frames.walk(io.BytesIO(data[:-2]), len(data)))

    assert found[-1].reason == "cut in the middle: the record takes 17 bytes, 15 are left"


def test_a_frame_gives_its_record_back() -> None:
    frame = np.frombuffer(shard(b"a record"), np.uint8)

    assert frames.unframed(frame).tobytes() == b"a record"


@given(st.integers(0, len(shard(b"a record")) * 8 - 1))
def test_every_bit_of_a_frame_is_guarded(bit: int) -> None:
    frame = np.frombuffer(shard(b"a record"), np.uint8).copy()
    frame[bit // 8] ^= 1 << bit % 8

    with pytest.raises(BadContentError):
        frames.unframed(frame)


def test_another_frame_in_its_place_is_refused() -> None:
    frame = np.frombuffer(shard(b"short") + bytes(3), np.uint8)

    with pytest.raises(BadContentError, match="its length is 5, 8 was indexed"):
        frames.unframed(frame)


@pytest.mark.parametrize("record", [b"", bytes(MAX_RECORD_BYTES + 1)], ids=["empty", "too long"])
def test_what_could_not_be_read_is_not_framed(record: bytes) -> None:
    with pytest.raises(BadContentError):
        frames.framed(record)


def test_compressed_shards_are_known_by_their_first_bytes() -> None:
    data = shard(*RECORDS)

    assert frames.compression(gzip.compress(data)) == "gzip"
    assert [frames.compression(zlib.compress(data, level)) for level in (1, 6, 9)] == ["zlib"] * 3
    assert frames.compression(data) is None
    assert frames.compression(b"") is None


def test_a_length_that_looks_compressed_is_still_a_length() -> None:
    assert frames.compression(longest_frame(0x8B1F)) is None
    assert frames.compression(longest_frame(0x9C78)) is None
