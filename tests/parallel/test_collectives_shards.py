"""Shards and buckets contain every element once, and buckets fit the buffer."""

import pytest

from convoy.numerics.flat import ALIGNMENT
from convoy.parallel.collectives import Shards, bucket_size

SIZES = [0, 16, 32, 48, 160, 1600, 78_400]


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("replicas", range(1, 9))
def test_shards_are_contiguous_and_complete(elements: int, replicas: int) -> None:
    shards = Shards(elements, replicas)
    ranges = [shards.range_of(replica) for replica in range(replicas)]

    assert [element for item in ranges for element in (item.start, item.stop)][1:-1:2] == [
        item.start for item in ranges[1:]
    ]
    assert (ranges[0].start, ranges[-1].stop) == (0, elements)
    assert all(item.start % ALIGNMENT == 0 for item in ranges)


def test_a_short_vector_has_empty_shards_on_the_last_replicas() -> None:
    ranges = [Shards(48, 4).range_of(replica) for replica in range(4)]

    assert ranges == [range(16), range(16, 32), range(32, 48), range(48, 48)]


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("size", [16, 48, 1024])
def test_buckets_cover_every_shard_once(elements: int, size: int) -> None:
    shards = Shards(elements, 3)
    for replica in range(3):
        buckets = [
            shards.range_of(replica)[first : first + size] for first in range(0, shards.size, size)
        ]
        covered = [element for bucket in buckets for element in range(bucket.start, bucket.stop)]

        assert covered == list(shards.range_of(replica))


@pytest.mark.parametrize("max_bytes", [1, 64, 1000, 4096, 1 << 20])
@pytest.mark.parametrize("copies", [1, 2, 6])
def test_buckets_fit_the_buffer_or_are_one_cache_line(max_bytes: int, copies: int) -> None:
    size = bucket_size(100_000, copies, max_bytes, element_bytes=4)

    assert size % ALIGNMENT == 0 or size == 100_000
    assert size == ALIGNMENT or copies * size * 4 <= max_bytes


def test_a_large_buffer_has_one_bucket_per_shard() -> None:
    assert bucket_size(4096, 2, 1 << 30, element_bytes=4) == 4096
