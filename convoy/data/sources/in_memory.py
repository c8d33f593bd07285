"""A source whose images are made once and kept in memory, if they are few enough."""

from threading import Lock

import numpy as np

from convoy.data.source import Ids, Labels, Pixels
from convoy.data.sources.source import PixelSource

_CHUNK = 1024  # images made at a time


class InMemorySource(PixelSource):
    """The pixels and labels of another source, all in memory."""

    def __init__(self, source: PixelSource) -> None:
        self.class_names = source.class_names
        self.image_size = source.image_size
        self.normalization = source.normalization
        self._source = source
        self._ids = np.arange(len(source), dtype=np.int64)
        self._labels = source.labels(self._ids)
        self._pixels: Pixels | None = None
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._source)

    def pixels(self, ids: Ids) -> Pixels:
        return self._all_pixels().take(ids, axis=0)

    def labels(self, ids: Ids) -> Labels:
        return self._labels.take(ids)

    def _all_pixels(self) -> Pixels:
        """Made at the first call: a process that needs only labels is spared the work."""
        with self._lock:
            if self._pixels is None:
                size = self.image_size
                pixels = np.empty((len(self), size, size, 3), np.uint8)
                for start in range(0, len(self), _CHUNK):
                    chunk = slice(start, start + _CHUNK)
                    pixels[chunk] = self._source.pixels(self._ids[chunk])
                self._pixels = pixels
            return self._pixels


def keep_in_memory(source: PixelSource, max_bytes: int) -> PixelSource:
    """The same source, in memory if it takes no more than that."""
    size = len(source) * source.image_size**2 * 3
    return InMemorySource(source) if size <= max_bytes else source
