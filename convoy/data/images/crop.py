"""Crop windows for a batch at once, with or without object bounding boxes."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from convoy.data.records.record import Boxes
from convoy.data.source import Ids
from convoy.rng import F64, key, uniform

Sizes = npt.NDArray[np.int64]  # (batch, 2): height and width
Windows = npt.NDArray[np.int64]  # (batch, 4): left, top, width, height
Flags = npt.NDArray[np.bool_]  # (batch,)

_MIN_OBJECT_COVERED = 0.1  # fraction of the window, or of the object


def merge_boxes(sizes: Sizes, boxes: Sequence[Boxes] | None) -> F64:
    """Return the box around all boxes of each image, as corners in pixels; NaN without boxes."""
    merged = np.full((len(sizes), 4), np.nan)
    for image, image_boxes in enumerate(boxes or ()):
        valid = _clip_boxes(image_boxes)
        if len(valid):
            merged[image, :2] = valid[:, :2].min(axis=0)
            merged[image, 2:] = valid[:, 2:].max(axis=0)
    return _scale_to_pixels(merged, sizes)


def shows_object(windows: Windows, objects: F64) -> Flags:
    """Return whether enough of each window is object; always true without an object."""
    min_area = _MIN_OBJECT_COVERED * windows[:, 2:].prod(axis=1)
    shown: Flags = (_intersection_area(windows, objects) >= min_area) | np.isnan(objects[:, 0])
    return shown


class ObjectBoxes(NamedTuple):
    """All object boxes of a batch, as corners in pixels, each with the index of its image."""

    image_indices: npt.NDArray[np.int64]
    boxes: F64

    @classmethod
    def from_boxes(cls, sizes: Sizes, boxes: Sequence[Boxes] | None) -> "ObjectBoxes":
        """Collect the boxes of a batch; an image without boxes is one object."""
        full_image = np.array([[0.0, 0.0, 1.0, 1.0]])
        per_image = [full_image] * len(sizes) if boxes is None else list(map(_clip_boxes, boxes))
        per_image = [valid if len(valid) else full_image for valid in per_image]
        counts = np.array([len(valid) for valid in per_image], np.int64)
        image_indices = np.repeat(np.arange(len(sizes)), counts)
        corners = np.concatenate([np.empty((0, 4)), *per_image])  # a batch may be empty
        return cls(image_indices, _scale_to_pixels(corners, sizes[image_indices]))

    def visible_in(self, images: npt.NDArray[np.int64], windows: Windows) -> Flags:
        """Return whether the window of each image shows enough of one of its objects."""
        rows = np.full(self.image_indices[-1] + 1, -1)
        rows[images] = np.arange(len(images))
        row = rows[self.image_indices]
        boxes, row = self.boxes[row >= 0], row[row >= 0]
        enough = _MIN_OBJECT_COVERED * (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        shown = _intersection_area(windows[row], boxes) >= enough
        return np.bincount(row[shown], minlength=len(images)) > 0


def _clip_boxes(boxes: Boxes) -> F64:
    """Clip boxes to the image and drop those without area."""
    inside = np.clip(boxes.astype(np.float64), 0.0, 1.0)
    return inside[(inside[:, 2:] > inside[:, :2]).all(axis=1)]


def _scale_to_pixels(boxes: F64, sizes: Sizes) -> F64:
    return boxes * sizes[:, [1, 0, 1, 0]]


def _intersection_area(windows: Windows, boxes: F64) -> F64:
    corners = windows[:, :2]
    last = np.minimum(corners + windows[:, 2:], boxes[:, 2:])
    sides: F64 = np.maximum(last - np.maximum(corners, boxes[:, :2]), 0.0)
    return sides[:, 0] * sides[:, 1]


class Window(NamedTuple):
    """A crop window in pixels of the image, possibly fractional."""

    left: float
    top: float
    width: float
    height: float


_MAX_SHAPE_ATTEMPTS, _MAX_WINDOW_ATTEMPTS = 10, 9
_PYTORCH_AREA, _PYTORCH_RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
_TENSORFLOW_MIN_AREA, _TENSORFLOW_RATIO = 0.05, (0.75, 1.33)
_TENSORFLOW_MAX_ATTEMPTS = 100
_MAX_ASPECT_RATIO = 4  # longer images are cropped to this ratio first
# Indices of the random numbers of one attempt; the flip uses those of the first attempt.
_AREA, _RATIO, _LEFT, _TOP, _FLIP = range(5)


class CropBatch(NamedTuple):
    """Samples that need windows, and their random stream."""

    stream: int
    ids: Ids
    sizes: Sizes

    def select(self, indices: npt.NDArray[np.int64]) -> "CropBatch":
        return CropBatch(self.stream, self.ids[indices], self.sizes[indices])

    def uniform(self, attempt: int) -> F64:
        """Return the uniform random numbers of one attempt, (4, batch): one row per purpose."""
        return uniform(self.stream, self.ids, attempt, np.arange(4)[:, None])


def training_windows(
    sizes: Sizes,
    ids: Ids,
    seed: int,
    epoch: int,
    crop_rule: str = "pytorch",
    boxes: Sequence[Boxes] | None = None,
) -> tuple[Windows, Flags]:
    """Sample a crop window in each image as a framework does, and whether to flip it."""
    batch = CropBatch(key(seed, "crop", epoch), ids, sizes)
    if crop_rule == "tensorflow":
        windows = _tensorflow_windows(batch, ObjectBoxes.from_boxes(sizes, boxes))
    else:
        windows = _pytorch_windows(batch, merge_boxes(sizes, boxes))
    return windows, uniform(batch.stream, ids, 0, _FLIP) < 0.5


def _pytorch_windows(batch: CropBatch, objects: F64) -> Windows:
    windows, missed = np.empty((len(batch.ids), 4), np.int64), np.arange(len(batch.ids))
    for number in range(_MAX_WINDOW_ATTEMPTS):
        if len(missed):
            windows[missed] = _random_resized_crop(batch.select(missed), number)
            missed = missed[~shows_object(windows[missed], objects[missed])]
    return windows


def _random_resized_crop(batch: CropBatch, number: int) -> Windows:
    """Sample a window as torchvision's RandomResizedCrop does, ignoring objects."""
    windows = _center_windows(batch.sizes)
    pending = np.arange(len(batch.ids))
    for shape in range(_MAX_SHAPE_ATTEMPTS):
        if not len(pending):
            break
        remaining = batch.select(pending)
        rand = remaining.uniform(number * _MAX_SHAPE_ATTEMPTS + shape)
        area = _scale_uniform(rand[_AREA], *_PYTORCH_AREA) * remaining.sizes.prod(axis=1)
        ratio = np.exp(_scale_uniform(rand[_RATIO], *np.log(_PYTORCH_RATIO)))
        width, height = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        placed, fits = _place_windows(remaining.sizes, width, height, rand)
        windows[pending[fits]] = placed[fits]
        pending = pending[~fits]
    return windows


def _center_windows(sizes: Sizes) -> Windows:
    """Return the largest center window of each image within the aspect-ratio limits."""
    height, width = sizes.T
    min_ratio, max_ratio = _PYTORCH_RATIO
    crop_height = np.minimum(height, np.rint(width / min_ratio).astype(np.int64))
    crop_width = np.minimum(width, np.rint(height * max_ratio).astype(np.int64))
    return np.stack(
        [(width - crop_width) // 2, (height - crop_height) // 2, crop_width, crop_height], axis=1
    )


def _tensorflow_windows(batch: CropBatch, objects: ObjectBoxes) -> Windows:
    height, width = batch.sizes.T
    windows = np.stack([np.zeros_like(width), np.zeros_like(width), width, height], axis=1)
    pending = np.arange(len(batch.ids))
    for attempt in range(_TENSORFLOW_MAX_ATTEMPTS):
        if not len(pending):
            break
        remaining = batch.select(pending)
        rand = remaining.uniform(attempt)
        width, height = _sample_shape(remaining.sizes, rand)
        placed, fits = _place_windows(remaining.sizes, width, height, rand)
        fits &= objects.visible_in(pending, placed)
        windows[pending[fits]] = placed[fits]
        pending = pending[~fits]
    return windows


def _sample_shape(sizes: Sizes, rand: F64) -> tuple[F64, F64]:
    """Sample width and height; 0 where no height with this ratio has an allowed area."""
    ratio = _scale_uniform(rand[_RATIO], *_TENSORFLOW_RATIO)
    min_area = _TENSORFLOW_MIN_AREA * sizes.prod(axis=1)
    lowest = np.maximum(np.floor(np.sqrt(min_area / ratio)) - 1, 1)
    highest = np.minimum(np.floor((sizes[:, 1] + 0.5) / ratio) + 1, sizes[:, 0])
    for _ in range(3):  # rounding the width moves both ends by less than 3
        lowest += np.rint(lowest * ratio) * lowest < min_area
        highest -= np.rint(highest * ratio) > sizes[:, 1]
    height = lowest + np.floor(rand[_AREA] * (highest - lowest + 1))
    height *= highest >= lowest
    return np.rint(height * ratio), height


def _scale_uniform(rand: F64, low: float, high: float) -> F64:
    return low + rand * (high - low)


def _place_windows(sizes: Sizes, width: F64, height: F64, rand: F64) -> tuple[Windows, Flags]:
    """Place windows of these shapes at uniform positions; also return which of them fit."""
    fits = (width >= 1) & (width <= sizes[:, 1]) & (height >= 1) & (height <= sizes[:, 0])
    left = np.floor(rand[_LEFT] * (sizes[:, 1] - width + 1))
    top = np.floor(rand[_TOP] * (sizes[:, 0] - height + 1))
    return np.stack([left, top, width, height], axis=1).astype(np.int64), fits


class CenterCropPlan(NamedTuple):
    """Resize a window of the image to a height and width, then crop a square at (top, left)."""

    source_window: Window
    height: int
    width: int
    top: int
    left: int


# Where the crop starts if the surplus of pixels is odd: rounded to even as in torchvision, or down.
CenterRule = Literal["center", "center-floor"]


def center_rule(crop_rule: str) -> CenterRule:
    """The rule of validation crops that belongs to a rule of random crops."""
    return "center-floor" if crop_rule == "tensorflow" else "center"


def center_crop(height: int, width: int, size: int, rule: CenterRule = "center") -> CenterCropPlan:
    """Plan to resize the shorter side to 256/224 of the size and crop the center."""
    resized_side, shorter_side = size * 256 // 224, min(height, width)
    crop_height, crop_width = (
        min(side, _MAX_ASPECT_RATIO * shorter_side) for side in (height, width)
    )
    window = Window((width - crop_width) // 2, (height - crop_height) // 2, crop_width, crop_height)
    crop_height, crop_width = (
        side * resized_side // shorter_side for side in (crop_height, crop_width)
    )
    top, left = (_center_offset(side - size, rule) for side in (crop_height, crop_width))
    return CenterCropPlan(window, crop_height, crop_width, top, left)


def _center_offset(surplus: int, rule: CenterRule) -> int:
    return surplus // 2 if rule == "center-floor" else round(surplus / 2)
