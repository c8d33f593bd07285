"""Image augmentation, vectorised over the batch; random by (seed, epoch, sample id)."""

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from convoy.data.source import Ids, Pixels
from convoy.rng import key, uniform


@dataclass(frozen=True)
class Augmentation:
    """Pad with zeros, take a random crop of the original size, and flip half of the images."""

    padding: int = 0
    flip: bool = False

    def __call__(self, pixels: Pixels, ids: Ids, seed: int, epoch: int) -> Pixels:
        if not self.padding and not self.flip:
            return pixels
        rand = uniform(key(seed, "augment", epoch), ids, np.arange(3)[:, None])
        top, left = np.floor(rand[:2] * (2 * self.padding + 1)).astype(np.int64)
        flipped = (rand[2] >= 0.5) & self.flip
        return crop_and_flip(pixels, self.padding, top, left, flipped)


def crop_and_flip(
    pixels: Pixels,
    padding: int,
    top: npt.NDArray[np.int64],
    left: npt.NDArray[np.int64],
    flipped: npt.NDArray[np.bool_],
) -> Pixels:
    """Crop each padded image at (top, left), and flip those in `flipped` horizontally."""
    count, height, width, channels = pixels.shape
    padded_height, padded_width = height + 2 * padding, width + 2 * padding
    padded = np.zeros((count, padded_height, padded_width, channels), np.uint8)
    padded[:, padding : padding + height, padding : padding + width] = pixels
    # Rows of the padded images.
    starts = (np.arange(count) * padded_height + top)[:, None] + np.arange(height)
    # A row of `width` pixels starting at each pixel, as one value: overlapping views, so that
    # indexing copies full rows.
    row, rows = (
        np.dtype((np.void, width * channels)),
        count * padded_height * padded_width - width + 1,
    )
    overlapping = np.ndarray(rows, row, padded, strides=(channels,))
    cropped = overlapping[starts * padded_width + left[:, None]]
    images: Pixels = cropped.view(np.uint8).reshape(pixels.shape)
    if flipped.any():  # all rows at once, as one tall image
        selected = images[flipped]
        stacked = selected.reshape(-1, *selected.shape[2:])
        images[flipped] = cv2.flip(stacked, 1).reshape(selected.shape)
    return images


NO_AUGMENTATION = Augmentation()
PAD_CROP_FLIP = Augmentation(padding=4, flip=True)

# The usual augmentation of datasets that have one; --no-augment turns it off.
AUGMENTATIONS = {"cifar10": PAD_CROP_FLIP, "cifar100": PAD_CROP_FLIP}
