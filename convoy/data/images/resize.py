"""A window of an image becomes a square of the wanted size, on bytes.

    fit      for training: OpenCV's plain bilinear, on what decoding at a reduced size has left;
             an image that could not be reduced, and is much too large, as below
    smooth   for validation: bilinear with antialiasing, what Pillow does, by torch's kernel

Nothing here starts threads: OpenCV is told so, and torch is given rows in one piece and a place
for the result, so that it need not copy. A result is the same for any number of threads.
"""

from collections.abc import Callable

import cv2
import numpy as np
import torch

from convoy.data.images.decode import Image
from convoy.data.images.scratch import Scratch
from convoy.data.images.window import Window

cv2.setNumThreads(1)

# What torch.nn.functional.interpolate calls for this mode; only here can the result have a place.
_interpolate: Callable[..., torch.Tensor] = torch._C._nn._upsample_bilinear2d_aa
_MOST_SCALE = 8 / 3  # reduced decoding leaves less, for windows of a ratio up to 4/3

_in_one_piece = Scratch()


def fit(pixels: Image, window: Window, mirrored: bool, out: Image) -> None:
    """The window as `out`, which lies in one piece."""
    inside = cut(pixels, window)
    height, width, _ = inside.shape
    tall, wide, _ = out.shape
    if height < _MOST_SCALE * tall and width < _MOST_SCALE * wide:
        cv2.resize(inside, (wide, tall), dst=out, interpolation=cv2.INTER_LINEAR)
    else:
        smooth(inside, out)
    if mirrored:
        cv2.flip(out, 1, dst=out)


def smooth(pixels: Image, out: Image) -> None:
    """The whole image as `out`, with antialiasing."""
    rows = _in_one_piece(pixels.size).reshape(pixels.shape)
    np.copyto(rows, pixels)
    _interpolate(_planes(rows), out.shape[:2], False, None, None, out=_planes(out))


def cut(pixels: Image, window: Window) -> Image:
    """The pixels of a window, which may lie between them: the nearest ones, at least one."""
    left, top, width, height = window
    first_row = min(round(top), pixels.shape[0] - 1)
    first_column = min(round(left), pixels.shape[1] - 1)
    last_row = max(round(top + height), first_row + 1)
    last_column = max(round(left + width), first_column + 1)
    return pixels[first_row:last_row, first_column:last_column]


def _planes(pixels: Image) -> torch.Tensor:
    """(1, 3, height, width), the same memory."""
    return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
