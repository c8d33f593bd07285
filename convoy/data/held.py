"""A source that is kept in memory when it is small enough, so that it is made only once."""

from threading import Lock

import numpy as np

from convoy.data.source import Ids, Labels, Normalization, Pixels, Source

_CHUNK = 1024  # images made at a time


class Held:
    """The pixels and labels of a source, all in memory."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._every = np.arange(len(source), dtype=np.int64)
        self._labels = source.labels(self._every)
        self._made: Pixels | None = None
        self._making = Lock()

    def _all_pixels(self) -> Pixels:
        """Made when somebody first asks: a process that needs labels alone is spared the work."""
        with self._making:
            if self._made is None:
                source, size = self._source, self._source.image_size
                self._made = np.empty((len(source), size, size, 3), np.uint8)
                for start in range(0, len(source), _CHUNK):
                    chunk = slice(start, start + _CHUNK)
                    self._made[chunk] = source.pixels(self._every[chunk])
        return self._made

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._source.class_names

    @property
    def image_size(self) -> int:
        return self._source.image_size

    @property
    def normalization(self) -> Normalization:
        return self._source.normalization

    def __len__(self) -> int:
        return len(self._source)

    def pixels(self, ids: Ids) -> Pixels:
        return self._all_pixels().take(ids, axis=0)

    def labels(self, ids: Ids) -> Labels:
        return self._labels.take(ids)


def hold(source: Source, most_bytes: int) -> Source:
    """The same source, in memory if it takes no more than that."""
    size = len(source) * source.image_size**2 * 3
    return Held(source) if size <= most_bytes else source
