"""`generated`: random images made on the host, for runs that need the traffic but not the data.

A small pool of images is drawn once and repeated, so any number of samples costs the same.
"""

import numpy as np

from convoy import rng
from convoy.data.source import Ids, Labels, Normalization, Pixels
from convoy.data.sources.source import PixelSource
from convoy.errors import ConfigError

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
