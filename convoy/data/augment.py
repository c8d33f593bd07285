"""Per-image changes, vectorised over the batch. Chance comes in by (seed, epoch, sample id)."""

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from convoy.data.source import Ids, Pixels
from convoy.rng import key, uniform


@dataclass(frozen=True)
class Augmentation:
    """Pad with black, crop back at a random place, mirror half of the images."""

    padding: int = 0
    flip: bool = False

    def __call__(self, pixels: Pixels, ids: Ids, seed: int, epoch: int) -> Pixels:
        if not self.padding and not self.flip:
            return pixels
        drawn = uniform(key(seed, "augment", epoch), ids, np.arange(3)[:, None])
        top, left = np.floor(drawn[:2] * (2 * self.padding + 1)).astype(np.int64)
        mirrored = (drawn[2] >= 0.5) & self.flip
        return crop_and_mirror(pixels, self.padding, top, left, mirrored)


def crop_and_mirror(
    pixels: Pixels,
    padding: int,
    top: npt.NDArray[np.int64],
    left: npt.NDArray[np.int64],
    mirrored: npt.NDArray[np.bool_],
) -> Pixels:
    """Each image from its own corner of the padded one, mirrored where told."""
    count, height, width, channels = pixels.shape
    tall, wide = height + 2 * padding, width + 2 * padding
    framed = np.zeros((count, tall, wide, channels), np.uint8)
    framed[:, padding : padding + height, padding : padding + width] = pixels
    starts = (np.arange(count) * tall + top)[:, None] + np.arange(height)  # rows of the frames
    cropped = _rows(framed, width)[starts * wide + left[:, None]]
    images: Pixels = cropped.view(np.uint8).reshape(pixels.shape)
    if mirrored.any():  # all rows at once, as those of one tall image
        chosen = images[mirrored]
        tall = chosen.reshape(-1, *chosen.shape[2:])
        images[mirrored] = cv2.flip(tall, 1).reshape(chosen.shape)
    return images


def _rows(framed: Pixels, width: int) -> npt.NDArray[np.void]:
    """The row of so many pixels that begins at each pixel, as one value each: overlapping views,
    so that an index of rows copies them whole."""
    channels = framed.shape[3]
    pixels = framed.size // channels
    row = np.dtype((np.void, width * channels))
    return np.ndarray(pixels - width + 1, row, framed, strides=(channels,))


NONE = Augmentation()
PAD_CROP_FLIP = Augmentation(padding=4, flip=True)

# What each data set's users expect; --no-augment turns it off.
BY_DATA = {
    "cifar10": PAD_CROP_FLIP,
    "cifar100": PAD_CROP_FLIP,
    "shapes": NONE,
    "generated": NONE,
    "synthetic": NONE,
}
