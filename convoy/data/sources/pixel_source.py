"""Sources with images of one size: in memory, cached, or generated.

To add a dataset with images of one size, derive from `PixelSource`, define `pixels`, `labels` and
`__len__`, and open it by name in `sources/open.py`.
"""

from abc import abstractmethod
from dataclasses import dataclass
from threading import Lock

import numpy as np

from convoy import rng
from convoy.config.sections.data import DataConfig
from convoy.data.augment import AUGMENTATIONS, NO_AUGMENTATION, Augmentation
from convoy.data.progress import no_op
from convoy.data.records.ledger import Ledger
from convoy.data.source import Ids, Labels, Normalization, Pixels, Source, StepCallback, View


class PixelSource(Source):
    """A source with images of one size, none of which can be bad once it is open."""

    image_size: int

    @abstractmethod
    def pixels(self, ids: Ids) -> Pixels: ...

    def content(self, ids: Ids) -> bytes:
        return np.ascontiguousarray(self.pixels(ids)).tobytes()

    def training_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        del size, ledger
        augmentation = AUGMENTATIONS.get(config.data) if config.augment else None
        return PixelView(self, augmentation or NO_AUGMENTATION, config.seed)

    def validation_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        del config, size, ledger
        return PixelView(self)


@dataclass(frozen=True)
class PixelView:
    """The images of a `PixelSource`, augmented for each epoch."""

    source: PixelSource
    augmentation: Augmentation = NO_AUGMENTATION
    seed: int = 0

    @property
    def size(self) -> int:
        return self.source.image_size

    def __call__(
        self, ids: Ids, epoch: int, out: Pixels, on_step: StepCallback = no_op
    ) -> tuple[int, ...]:
        pixels = self.source.pixels(ids)
        on_step("take")
        out[:] = self.augmentation(pixels, ids, self.seed, epoch)
        on_step("augment")
        return ()


_CHUNK = 1024  # images cached at a time


class ArraySource(PixelSource):
    def __init__(
        self,
        pixels: Pixels,
        labels: Labels,
        class_names: tuple[str, ...],
        normalization: Normalization,
    ) -> None:
        self.class_names = class_names
        self.image_size = pixels.shape[1]
        self.normalization = normalization
        self._pixels = pixels
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def pixels(self, ids: Ids) -> Pixels:
        return self._pixels.take(ids, axis=0)

    def labels(self, ids: Ids) -> Labels:
        return self._labels.take(ids)


class CachedSource(ArraySource):
    """The pixels and labels of another source, cached in memory."""

    def __init__(self, source: PixelSource) -> None:
        self._source: PixelSource | None = source  # None once all pixels are cached
        self._ids = np.arange(len(source), dtype=np.int64)
        self._lock = Lock()
        pixels = np.empty((len(source), source.image_size, source.image_size, 3), np.uint8)
        labels = source.labels(self._ids)
        super().__init__(pixels, labels, source.class_names, source.normalization)

    def pixels(self, ids: Ids) -> Pixels:
        """Fill the cache on the first call, so that a process that needs only labels does not."""
        with self._lock:
            if self._source is not None:
                for start in range(0, len(self), _CHUNK):
                    chunk = slice(start, start + _CHUNK)
                    self._pixels[chunk] = self._source.pixels(self._ids[chunk])
                self._source = None
        return self._pixels.take(ids, axis=0)


def cache_in_memory(source: PixelSource, max_bytes: int) -> PixelSource:
    """Cache a source in memory if it is not larger than `max_bytes`."""
    size = len(source) * source.image_size**2 * 3
    return CachedSource(source) if size <= max_bytes else source


_MAX_POOL_IMAGES = 64
_MAX_POOL_BYTES = 2**24  # at least one image, however large


class GeneratedSource(PixelSource):
    """Random images from a small pool; the labels cycle through the classes."""

    # Of uniform values in 0 … 254, divided by 255.
    normalization = Normalization((0.498, 0.498, 0.498), (0.288, 0.288, 0.288))

    def __init__(self, samples: int, image_size: int, classes: int, seed: int) -> None:
        self.image_size = image_size
        self.class_names = tuple(f"class {label}" for label in range(classes))
        self._samples = samples
        self._pool = _make_pool(min(samples, _MAX_POOL_IMAGES), image_size, seed)

    def __len__(self) -> int:
        return self._samples

    def pixels(self, ids: Ids) -> Pixels:
        return self._pool.take(ids % len(self._pool), axis=0)

    def labels(self, ids: Ids) -> Labels:
        return ids % len(self.class_names)


def _make_pool(images: int, size: int, seed: int) -> Pixels:
    """Return random bytes below 255; a larger pool starts with the images of a smaller one."""
    image_bytes = size * size * 3
    images = min(images, max(1, _MAX_POOL_BYTES // image_bytes))
    words = np.arange(-(-image_bytes // 8))
    rand = rng.bits(rng.key(seed, "generated"), np.arange(images)[:, None], words)
    raw = rand.astype("<u8", copy=False).view(np.uint8)[:, :image_bytes]
    # 256 values map to 255, so one is twice as frequent, which does not matter here.
    pool = (raw.astype(np.uint16) * 255 >> 8).astype(np.uint8)
    return pool.reshape(images, size, size, 3)
