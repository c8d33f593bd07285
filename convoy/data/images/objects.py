"""What a window shows of the objects in an image: boxes against windows, for a whole batch.

Boxes come as shares of width and height. Those without an area are passed over; what reaches
beyond the image is cut off.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from convoy.chance import F64
from convoy.data.records.record import Boxes

Sizes = npt.NDArray[np.int64]  # (batch, 2): height and width
Windows = npt.NDArray[np.int64]  # (batch, 4): left, top, width, height
Flags = npt.NDArray[np.bool_]  # (batch,)

LEAST = 0.1  # of the window, or of the object


def merged(sizes: Sizes, boxes: Sequence[Boxes]) -> F64:
    """One box around all boxes of an image, as corners in pixels; NaN for an image without."""
    around = np.full((len(boxes), 4), np.nan)
    for place, some in enumerate(boxes):
        sound = _sound(some)
        if len(sound):
            around[place, :2] = sound[:, :2].min(axis=0)
            around[place, 2:] = sound[:, 2:].max(axis=0)
    return _in_pixels(around, sizes)


def shows(windows: Windows, objects: F64) -> Flags:
    """Whether enough of the window is object; nothing is missed where there is none."""
    enough = LEAST * windows[:, 2:].prod(axis=1)
    shown: Flags = (_overlap(windows, objects) >= enough) | np.isnan(objects[:, 0])
    return shown


class Objects(NamedTuple):
    """All boxes of a batch in one list, as corners in pixels, each with the place of its image."""

    owners: npt.NDArray[np.int64]
    boxes: F64

    @classmethod
    def of(cls, sizes: Sizes, boxes: Sequence[Boxes] | None) -> "Objects":
        """An image without boxes is an object itself."""
        whole = np.array([[0.0, 0.0, 1.0, 1.0]])
        found = [whole] * len(sizes) if boxes is None else [_sound(some) for some in boxes]
        found = [some if len(some) else whole for some in found]
        counts = np.array([len(some) for some in found], np.int64)
        owners = np.repeat(np.arange(len(sizes)), counts)
        together = np.concatenate([np.empty((0, 4)), *found])  # a batch may have no image
        return cls(owners, _in_pixels(together, sizes[owners]))

    def seen(self, places: npt.NDArray[np.int64], windows: Windows) -> Flags:
        """Whether the window of each place shows enough of one of its objects."""
        rows = np.full(self.owners[-1] + 1, -1)
        rows[places] = np.arange(len(places))
        own = rows[self.owners]
        asked, own = self.boxes[own >= 0], own[own >= 0]
        enough = LEAST * (asked[:, 2:] - asked[:, :2]).prod(axis=1)
        shown = _overlap(windows[own], asked) >= enough
        return np.bincount(own[shown], minlength=len(places)) > 0


def _sound(boxes: Boxes) -> F64:
    """Those with an area, as far as they lie in the image."""
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
