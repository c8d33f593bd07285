"""Crop windows for a whole batch at once, as pure numbers, with or without object boxes."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from convoy.data.records.record import Boxes
from convoy.data.source import Ids
from convoy.rng import F64, key, uniform

Sizes = npt.NDArray[np.int64]  # (batch, 2): height and width
Windows = npt.NDArray[np.int64]  # (batch, 4): left, top, width, height
Flags = npt.NDArray[np.bool_]  # (batch,)

LEAST = 0.1  # of the window, or of the object


def merged(sizes: Sizes, boxes: Sequence[Boxes]) -> F64:
    """One box around all boxes of an image, as corners in pixels; NaN for an image without."""
    around = np.full((len(boxes), 4), np.nan)
    for image, some in enumerate(boxes):
        valid = _valid(some)
        if len(valid):
            around[image, :2] = valid[:, :2].min(axis=0)
            around[image, 2:] = valid[:, 2:].max(axis=0)
    return _in_pixels(around, sizes)


def shows(windows: Windows, objects: F64) -> Flags:
    """Whether enough of the window is object; always, if there is no object."""
    enough = LEAST * windows[:, 2:].prod(axis=1)
    shown: Flags = (_overlap(windows, objects) >= enough) | np.isnan(objects[:, 0])
    return shown


class Objects(NamedTuple):
    """All boxes of a batch in one list, as corners in pixels, each with the index of its image."""

    owners: npt.NDArray[np.int64]
    boxes: F64

    @classmethod
    def of(cls, sizes: Sizes, boxes: Sequence[Boxes] | None) -> "Objects":
        """An image without boxes is an object itself."""
        whole = np.array([[0.0, 0.0, 1.0, 1.0]])
        found = [whole] * len(sizes) if boxes is None else [_valid(some) for some in boxes]
        found = [some if len(some) else whole for some in found]
        counts = np.array([len(some) for some in found], np.int64)
        owners = np.repeat(np.arange(len(sizes)), counts)
        together = np.concatenate([np.empty((0, 4)), *found])  # a batch may have no image
        return cls(owners, _in_pixels(together, sizes[owners]))

    def seen(self, images: npt.NDArray[np.int64], windows: Windows) -> Flags:
        """Whether the window of each image shows enough of one of its objects."""
        rows = np.full(self.owners[-1] + 1, -1)
        rows[images] = np.arange(len(images))
        row = rows[self.owners]
        boxes, row = self.boxes[row >= 0], row[row >= 0]
        enough = LEAST * (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        shown = _overlap(windows[row], boxes) >= enough
        return np.bincount(row[shown], minlength=len(images)) > 0


def _valid(boxes: Boxes) -> F64:
    """Those with an area, clipped to the image."""
    inside = np.clip(boxes.astype(np.float64), 0.0, 1.0)
    return inside[(inside[:, 2:] > inside[:, :2]).all(axis=1)]


def _in_pixels(boxes: F64, sizes: Sizes) -> F64:
    return boxes * sizes[:, [1, 0, 1, 0]]


def _overlap(windows: Windows, boxes: F64) -> F64:
    """The area that both have."""
    corners = windows[:, :2]
    last = np.minimum(corners + windows[:, 2:], boxes[:, 2:])
    sides = np.maximum(last - np.maximum(corners, boxes[:, :2]), 0.0)
    area: F64 = sides.prod(axis=1)
    return area


class Window(NamedTuple):
    """In pixels of the image, or between them."""

    left: float
    top: float
    width: float
    height: float

    def scaled(self, across: float, down: float) -> "Window":
        """The same part of an image that has so many times the pixels."""
        return Window(self.left * across, self.top * down, self.width * across, self.height * down)


class CropRule(Enum):
    """Whose random crop is reproduced."""

    PYTORCH = auto()
    TENSORFLOW = auto()


_SHAPES, _WINDOWS = 10, 9
_PYTORCH_AREA, _PYTORCH_RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
_TENSORFLOW_LEAST, _TENSORFLOW_RATIO = 0.05, (0.75, 1.33)
_TENSORFLOW_WINDOWS = 100
_LONGEST = 4  # times the shorter side: beyond it, nothing of an image is near its middle
# The numbers that one attempt draws; whether to mirror is drawn with the first.
_AREA, _RATIO, _ACROSS, _DOWN, _MIRROR = range(5)


class CropBatch(NamedTuple):
    """The samples that need windows, and the random stream they draw from."""

    stream: int
    ids: Ids
    sizes: Sizes

    def some(self, chosen: npt.NDArray[np.int64]) -> "CropBatch":
        return CropBatch(self.stream, self.ids[chosen], self.sizes[chosen])

    def draw(self, attempt: int) -> F64:
        """Even numbers of one attempt, a row for each purpose."""
        return uniform(self.stream, self.ids, attempt, np.arange(4)[:, None])


def training_windows(
    sizes: Sizes,
    ids: Ids,
    seed: int,
    epoch: int,
    rule: CropRule = CropRule.PYTORCH,
    boxes: Sequence[Boxes] | None = None,
) -> tuple[Windows, Flags]:
    """A window inside each image, and whether it is mirrored."""
    batch = CropBatch(key(seed, "crop", epoch), ids, sizes)
    if rule is CropRule.TENSORFLOW:
        windows = _tensorflow(batch, Objects.of(sizes, boxes))
    else:
        windows = _pytorch(batch, None if boxes is None else merged(sizes, boxes))
    return windows, uniform(batch.stream, ids, 0, _MIRROR) < 0.5


def _pytorch(batch: CropBatch, objects: F64 | None) -> Windows:
    windows = _of_any_shape(batch, 0)
    if objects is None:
        return windows
    missed = np.flatnonzero(~shows(windows, objects))
    for number in range(1, _WINDOWS):
        if not len(missed):
            break
        windows[missed] = _of_any_shape(batch.some(missed), number)
        missed = missed[~shows(windows[missed], objects[missed])]
    return windows


def _of_any_shape(batch: CropBatch, number: int) -> Windows:
    """The window of that number, whatever it shows."""
    windows = _middles(batch.sizes)
    pending = np.arange(len(batch.ids))
    for shape in range(_SHAPES):
        if not len(pending):
            break
        some = batch.some(pending)
        drawn = some.draw(number * _SHAPES + shape)
        area = _between(drawn[_AREA], _PYTORCH_AREA) * some.sizes.prod(axis=1)
        ratio = np.exp(_between(drawn[_RATIO], np.log(_PYTORCH_RATIO)))
        width, height = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        placed, fits = _placed(some.sizes, width, height, drawn)
        windows[pending[fits]] = placed[fits]
        pending = pending[~fits]
    return windows


def _middles(sizes: Sizes) -> Windows:
    """As much of each image as the ratio allows, around its middle."""
    height, width = sizes.T
    least, most = _PYTORCH_RATIO
    lower = np.minimum(height, np.rint(width / least).astype(np.int64))
    narrower = np.minimum(width, np.rint(height * most).astype(np.int64))
    return np.stack([(width - narrower) // 2, (height - lower) // 2, narrower, lower], axis=1)


def _tensorflow(batch: CropBatch, objects: Objects) -> Windows:
    height, width = batch.sizes.T
    windows = np.stack([np.zeros_like(width), np.zeros_like(width), width, height], axis=1)
    pending = np.arange(len(batch.ids))
    for attempt in range(_TENSORFLOW_WINDOWS):
        if not len(pending):
            break
        some = batch.some(pending)
        drawn = some.draw(attempt)
        placed, fits = _placed(some.sizes, *_even_in_height(some.sizes, drawn), drawn)
        fits &= objects.seen(pending, placed)
        windows[pending[fits]] = placed[fits]
        pending = pending[~fits]
    return windows


def _even_in_height(sizes: Sizes, drawn: F64) -> tuple[F64, F64]:
    """Width and height; 0 where no height of that ratio has an allowed area."""
    ratio = _between(drawn[_RATIO], _TENSORFLOW_RATIO)
    least = _TENSORFLOW_LEAST * sizes.prod(axis=1)
    lowest = np.maximum(np.floor(np.sqrt(least / ratio)) - 1, 1)
    highest = np.minimum(np.floor((sizes[:, 1] + 0.5) / ratio) + 1, sizes[:, 0])
    for _ in range(3):  # rounding of the width moves both ends by less than that
        lowest += np.rint(lowest * ratio) * lowest < least
        highest -= np.rint(highest * ratio) > sizes[:, 1]
    height = lowest + np.floor(drawn[_AREA] * (highest - lowest + 1))
    height *= highest >= lowest
    return np.rint(height * ratio), height


def _between(drawn: F64, limits: npt.ArrayLike) -> F64:
    low, high = np.asarray(limits, np.float64)
    spread: F64 = low + drawn * (high - low)
    return spread


def _placed(sizes: Sizes, width: F64, height: F64, drawn: F64) -> tuple[Windows, Flags]:
    """Windows of these shapes at uniform positions, and which of them fit."""
    fits = (width >= 1) & (width <= sizes[:, 1]) & (height >= 1) & (height <= sizes[:, 0])
    left = np.floor(drawn[_ACROSS] * (sizes[:, 1] - width + 1))
    top = np.floor(drawn[_DOWN] * (sizes[:, 0] - height + 1))
    return np.stack([left, top, width, height], axis=1).astype(np.int64), fits


class CenterCrop(NamedTuple):
    """The part of an image that is resized, to which size, and the corner of the square in that."""

    seen: Window
    height: int
    width: int
    top: int
    left: int


def center(height: int, width: int, size: int) -> CenterCrop:
    """The shorter side becomes 256/224 of the size; half of the surplus is left on each side."""
    short, least = size * 256 // 224, min(height, width)
    tall, wide = min(height, _LONGEST * least), min(width, _LONGEST * least)
    seen = Window((width - wide) // 2, (height - tall) // 2, wide, tall)
    tall, wide = tall * short // least, wide * short // least
    return CenterCrop(seen, tall, wide, (tall - size) // 2, (wide - size) // 2)
