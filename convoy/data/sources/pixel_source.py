"""Sources whose images all have one size: their view, images kept in memory, generated images.

A data set whose images all have one size derives from `PixelSource` and adds `pixels`, `labels`
and `__len__`; `sources/open.py` opens it by name.
"""

from abc import abstractmethod
from dataclasses import dataclass
from threading import Lock

import numpy as np

from convoy import rng
from convoy.config.sections.data import DataConfig
from convoy.data.augment import BY_DATA, NONE, Augmentation
from convoy.data.records.ledger import Ledger
from convoy.data.source import (
    Ids,
    Labels,
    Normalization,
    OnStep,
    Pixels,
    Source,
    Unread,
    View,
    no_steps,
)
from convoy.errors import ConfigError


class PixelSource(Source):
    """A source whose images all have one size, and cannot be bad once it is open."""

    image_size: int

    @abstractmethod
    def pixels(self, ids: Ids) -> Pixels: ...

    def content(self, ids: Ids) -> bytes:
        return np.ascontiguousarray(self.pixels(ids)).tobytes()

    def training_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        del size, ledger
        return PixelView(self, BY_DATA[config.data] if config.augment else NONE, config.seed)

    def validation_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        del config, size, ledger
        return PixelView(self)


@dataclass(frozen=True)
class PixelView:
    """The images of a `PixelSource`, augmented for each epoch."""

    source: PixelSource
    augmentation: Augmentation = NONE
    seed: int = 0

    @property
    def size(self) -> int:
        return self.source.image_size

    def __len__(self) -> int:
        return len(self.source)

    def labels(self, ids: Ids) -> Labels:
        return self.source.labels(ids)

    def __call__(self, ids: Ids, epoch: int, out: Pixels, on_step: OnStep = no_steps) -> Unread:
        pixels = self.source.pixels(ids)
        on_step("take")
        out[:] = self.augmentation(pixels, ids, self.seed, epoch)
        on_step("augment")
        return ()


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
        return len(self._ids)

    def pixels(self, ids: Ids) -> Pixels:
        """Made at the first call: a process that needs only labels is spared the work."""
        with self._lock:
            if self._pixels is None:
                self._pixels = np.empty((len(self), self.image_size, self.image_size, 3), np.uint8)
                for start in range(0, len(self), _CHUNK):
                    chunk = slice(start, start + _CHUNK)
                    self._pixels[chunk] = self._source.pixels(self._ids[chunk])
        return self._pixels.take(ids, axis=0)

    def labels(self, ids: Ids) -> Labels:
        return self._labels.take(ids)


def keep_in_memory(source: PixelSource, max_bytes: int) -> PixelSource:
    size = len(source) * source.image_size**2 * 3
    return InMemorySource(source) if size <= max_bytes else source


_MOST_IMAGES = 64
_MOST_POOL_BYTES = 2**24  # with at least one image, however large


class Generated(PixelSource):
    """`samples` images from a pool; the labels count through the classes."""

    # Of values spread evenly over 0 … 254, as shares of 255.
    normalization = Normalization((0.498, 0.498, 0.498), (0.288, 0.288, 0.288))

    def __init__(self, samples: int, image_size: int, classes: int, seed: int) -> None:
        for what, count in (("samples", samples), ("pixels", image_size), ("classes", classes)):
            if count < 1:
                raise ConfigError(f"generated data needs at least one of its {what}, got {count}")
        self.image_size = image_size
        self.class_names = tuple(f"class {label}" for label in range(classes))
        self._samples = samples
        self._pool = _pool(min(samples, _MOST_IMAGES), image_size, seed)

    def __len__(self) -> int:
        return self._samples

    def pixels(self, ids: Ids) -> Pixels:
        return self._pool.take(ids % len(self._pool), axis=0)

    def labels(self, ids: Ids) -> Labels:
        return ids % len(self.class_names)


def _pool(images: int, size: int, seed: int) -> Pixels:
    """Random bytes below 255; a larger pool begins with the images of a smaller one."""
    image_bytes = size * size * 3
    images = min(images, max(1, _MOST_POOL_BYTES // image_bytes))
    words = np.arange(-(-image_bytes // 8))
    drawn = rng.bits(rng.key(seed, "generated"), np.arange(images)[:, None], words)
    raw = drawn.astype("<u8", copy=False).view(np.uint8)[:, :image_bytes]
    # 256 values onto 255: one of them comes twice as often, which no use of this data can see.
    pool = (raw.astype(np.uint16) * 255 >> 8).astype(np.uint8)
    return pool.reshape(images, size, size, 3)
