"""Caching of small sources in memory."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from convoy.data.source import Ids, Labels, Pixels
from convoy.data.sources.pixel_source import CachedSource, GeneratedSource, cache_in_memory


class CountingSource(GeneratedSource):
    """Counts how often each image is generated, and the largest batch."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples, image_size=8, classes=5, seed=1)
        self.generated: Counter[int] = Counter()
        self.largest_batch = 0

    def pixels(self, ids: Ids) -> Pixels:
        self.generated.update(ids.tolist())
        self.largest_batch = max(self.largest_batch, len(ids))
        return super().pixels(ids)

    def labels(self, ids: Ids) -> Labels:
        return (ids * 3) % 5


@pytest.mark.parametrize("samples", [1, 1023, 1024, 1025, 2500])
def test_a_cached_source_gives_the_same_samples(samples: int) -> None:
    source = CachedSource(CountingSource(samples))
    plain = CountingSource(samples)
    ids = np.random.default_rng(0).integers(0, samples, 700)

    assert np.array_equal(source.pixels(ids), plain.pixels(ids))
    assert np.array_equal(source.labels(ids), plain.labels(ids))
    assert len(source) == samples
    assert source.class_names == plain.class_names
    assert source.image_size == plain.image_size
    assert source.normalization == plain.normalization


def test_each_image_is_cached_once_in_chunks() -> None:
    counting = CountingSource(2500)
    source = CachedSource(counting)
    for _ in range(3):
        source.pixels(np.arange(2500))

    assert counting.generated == Counter(range(2500))
    assert counting.largest_batch <= 1024


def test_modifying_a_batch_does_not_change_the_cache() -> None:
    source = CachedSource(CountingSource(10))
    before = source.pixels(np.arange(10)), source.labels(np.arange(10))
    source.pixels(np.arange(10))[:] = 0
    source.labels(np.arange(10))[:] = 0

    assert np.array_equal(source.pixels(np.arange(10)), before[0])
    assert np.array_equal(source.labels(np.arange(10)), before[1])


@pytest.mark.parametrize(("samples", "is_cached"), [(10, True), (11, False)])
def test_a_source_that_is_too_large_is_not_cached(samples: int, is_cached: bool) -> None:
    source = CountingSource(samples)
    result = cache_in_memory(source, max_bytes=10 * 8 * 8 * 3)

    assert isinstance(result, CachedSource) == is_cached
    assert (result is source) == (not is_cached)


def test_labels_do_not_fill_the_cache() -> None:
    counting = CountingSource(50)
    source = CachedSource(counting)
    labels = source.labels(np.arange(50))

    assert np.array_equal(labels, counting.labels(np.arange(50)))
    assert not counting.generated


def test_many_threads_cache_each_image_once() -> None:
    counting = CountingSource(3000)
    source = CachedSource(counting)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(source.pixels, [np.arange(10)] * 8))

    assert counting.generated == Counter(range(3000))
