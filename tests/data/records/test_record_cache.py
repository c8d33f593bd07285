"""The cache of records, within its limits."""

import numpy as np
import pytest

from convoy.data.records.ledger import BadRecordError, RecordLocation
from convoy.data.records.record import NO_BOXES, CachedRecords, EncodedImage


class CountingRecords:
    """Ten records of 100 bytes; the fifth is bad."""

    class_names = ("a", "b")
    labels = np.arange(10) % 2

    def __init__(self) -> None:
        self.reads: list[int] = []

    def __len__(self) -> int:
        return 10

    def location(self, index: int) -> RecordLocation:
        return RecordLocation("shard", 100 * index, index)

    def read(self, index: int) -> EncodedImage:
        self.reads.append(index)
        if index == 5:
            raise BadRecordError(self.location(5), "damaged")
        return EncodedImage(memoryview(bytes([index]) * 100), NO_BOXES)


def read_all(records: CachedRecords) -> list[bytes]:
    return [bytes(records.read(index).encoded) for index in range(10) if index != 5]


@pytest.mark.parametrize(
    ("max_bytes", "max_records", "reads"),
    [(1000, 10, 0), (499, 10, 5), (0, 10, 9), (1000, 3, 6), (float("inf"), 0, 9)],
)
def test_records_are_cached_up_to_the_limits(
    max_bytes: float, max_records: int, reads: int
) -> None:
    counting = CountingRecords()
    records = CachedRecords(counting, max_bytes, max_records)
    first = read_all(records)
    counting.reads.clear()

    assert read_all(records) == first == [bytes([n]) * 100 for n in range(10) if n != 5]
    assert len(counting.reads) == reads
    assert records.cached_bytes == 100 * (9 - reads)


def test_cached_images_are_copies() -> None:
    records = CachedRecords(CountingRecords(), 1000, 10)
    records.read(1)

    assert isinstance(records.read(1).encoded, bytes)


def test_bad_records_are_not_cached() -> None:
    counting = CountingRecords()
    records = CachedRecords(counting, 1000, 10)
    for _ in range(2):
        with pytest.raises(BadRecordError, match="damaged"):
            records.read(5)

    assert counting.reads == [5, 5]


def test_everything_else_is_forwarded_to_the_records() -> None:
    counting = CountingRecords()
    records = CachedRecords(counting, 1000, 10)

    assert (len(records), records.class_names, records.location(3)) == (
        10,
        ("a", "b"),
        counting.location(3),
    )
    assert records.labels is counting.labels
