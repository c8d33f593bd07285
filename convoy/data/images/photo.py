"""From an encoded image to the square of pixels that a network gets.

`out` is that square's place in the batch, (size, size, 3), all in one piece. On the way lies only
memory that each thread keeps for itself.
"""

from math import ceil

import numpy as np

from convoy.data.images.decode import Image, decode
from convoy.data.images.gate import Encoded, Header, look
from convoy.data.images.resize import cut, fit, smooth
from convoy.data.images.scratch import Scratch
from convoy.data.images.window import Window, center

_decoded_bytes = Scratch()
_resized_bytes = Scratch()


def training_photo(
    encoded: Encoded, header: Header, window: Window, mirrored: bool, size: int, out: Image
) -> None:
    """That window of the image."""
    pixels = pixels_for(encoded, header, window, size)
    crop(pixels, header, window, mirrored, out)


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
    header = look(encoded)
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
    pixels = decode(encoded, look(encoded), memory=_decoded_bytes)
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
