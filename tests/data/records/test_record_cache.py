"""Records in memory: the same ones, read once, and no more than may be."""

import numpy as np
import pytest

from convoy.data.records.ledger import BadRecordError, RecordLocation
from convoy.data.records.record import NO_BOXES, CachedRecords, EncodedImage


class Counted:
    """Ten records of 100 bytes; the fifth is bad."""

    class_names = ("a", "b")
    labels = np.arange(10) % 2

    def __init__(self) -> None:
        self.reads: list[int] = []

    def __len__(self) -> int:
        return 10

    def location(self, number: int) -> RecordLocation:
        return RecordLocation("shard", 100 * number, number)

    def read(self, number: int) -> EncodedImage:
        self.reads.append(number)
        if number == 5:
            raise BadRecordError(self.location(5), "torn")
        return EncodedImage(memoryview(bytes([number]) * 100), NO_BOXES)


def read_all(records: CachedRecords) -> list[bytes]:
    return [bytes(records.read(number).encoded) for number in range(10) if number != 5]


@pytest.mark.parametrize(
    ("most_bytes", "most_records", "again"),
    [(1000, 10, 0), (499, 10, 5), (0, 10, 9), (1000, 3, 6), (float("inf"), 0, 9)],
)
def test_as_many_are_kept_as_may_be(most_bytes: float, most_records: int, again: int) -> None:
    counted = Counted()
    records = CachedRecords(counted, most_bytes, most_records)
    first = read_all(records)
    counted.reads.clear()

    assert read_all(records) == first == [bytes([n]) * 100 for n in range(10) if n != 5]
    assert len(counted.reads) == again
    assert records.cached_bytes == 100 * (9 - again)


def test_what_is_kept_holds_no_file_open() -> None:
    records = CachedRecords(Counted(), 1000, 10)
    records.read(1)

    assert isinstance(records.read(1).encoded, bytes)


def test_a_bad_record_stays_bad() -> None:
    counted = Counted()
    records = CachedRecords(counted, 1000, 10)
    for _ in range(2):
        with pytest.raises(BadRecordError, match="torn"):
            records.read(5)

    assert counted.reads == [5, 5]


def test_all_else_is_that_of_the_records() -> None:
    counted = Counted()
    records = CachedRecords(counted, 1000, 10)

    assert (len(records), records.class_names, records.location(3)) == (
        10,
        ("a", "b"),
        counted.location(3),
    )
    assert records.labels is counted.labels
