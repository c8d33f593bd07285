"""From an encoded image to the square of pixels that is the network's input."""

from collections.abc import Callable
from math import ceil
from threading import local

import cv2
import numpy as np
import numpy.typing as npt
import torch

from convoy.data.images.crop import Window, center
from convoy.data.images.decode import Encoded, Header, Image, decode, read_header

MOST_KEPT = 16 * 2**20  # bytes of each buffer; larger images are rare


class ThreadBuffer(local):
    """One reusable buffer for each thread; the next call overwrites it."""

    def __init__(self) -> None:
        self._kept = np.empty(0, np.uint8)

    def __call__(self, count: int) -> npt.NDArray[np.uint8]:
        """So many bytes, of any content."""
        if count > MOST_KEPT:
            return np.empty(count, np.uint8)
        if count > len(self._kept):
            self._kept = np.empty(min(2 * count, MOST_KEPT), np.uint8)
        return self._kept[:count]


cv2.setNumThreads(1)

# What torch.nn.functional.interpolate calls for this mode; only here it takes `out`.
_interpolate: Callable[..., torch.Tensor] = torch._C._nn._upsample_bilinear2d_aa
_MOST_SCALE = 8 / 3  # reduced decoding leaves less, for windows of a ratio up to 4/3

_contiguous_bytes = ThreadBuffer()


def fit(pixels: Image, window: Window, mirrored: bool, out: Image) -> None:
    """The window as `out`, which is contiguous."""
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
    rows = _contiguous_bytes(pixels.size).reshape(pixels.shape)
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


_decoded_bytes = ThreadBuffer()
_resized_bytes = ThreadBuffer()


def pixels_for(encoded: Encoded, header: Header, window: Window, size: int) -> Image:
    """The whole image, with no more pixels than the window can use."""
    least = (
        ceil(header.height * size / window.height),
        ceil(header.width * size / window.width),
    )
    return decode(encoded, header, least, _decoded_bytes)


def crop(pixels: Image, header: Header, window: Window, mirrored: bool, out: Image) -> None:
    """The window of what was decoded for it."""
    fit(pixels, _scaled(window, header, pixels), mirrored, out)


def validation_photo(encoded: Encoded, size: int, out: Image) -> None:
    """The middle of the image."""
    header = read_header(encoded)
    goal = center(header.height, header.width, size)
    # Decoding may halve the image as long as it stays twice as large as needed: the rest of the
    # way is the resizing's, and no pixel can be told from one of the whole image.
    scale = 2 * goal.height / goal.seen.height
    least = ceil(header.height * scale), ceil(header.width * scale)
    pixels = decode(encoded, header, least, _decoded_bytes)
    resized = _resized_bytes(goal.height * goal.width * 3).reshape(goal.height, goal.width, 3)
    smooth(cut(pixels, _scaled(goal.seen, header, pixels)), resized)
    np.copyto(out, resized[goal.top : goal.top + size, goal.left : goal.left + size])


def whole_photo(encoded: Encoded, out: Image) -> None:
    """All of an image that was cropped before it was stored."""
    pixels = decode(encoded, read_header(encoded), allocate=_decoded_bytes)
    if pixels.shape == out.shape:
        np.copyto(out, pixels)
    else:
        smooth(pixels, out)


def _scaled(window: Window, header: Header, pixels: Image) -> Window:
    """A window of the image as a window of what was decoded of it."""
    height, width, _ = pixels.shape
    if width == header.width and height == header.height:
        return window
    return window.scaled(width / header.width, height / header.height)
