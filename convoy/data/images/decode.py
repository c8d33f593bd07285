"""From the bytes of an image to rows of RGB pixels: strict, and smaller where that is enough.

JPEG goes through simplejpeg: the first warning of its decoder ends it, so that a cut or damaged
file is an ImageError and never half grey. A size of 1/2, 1/4 or 1/8 falls out of the decoding
itself, with each pixel the mean of those it stands for. Greyscale becomes three equal channels.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import simplejpeg  # type: ignore[import-untyped]  # it brings no types

from convoy.data.images.gate import ODD, Encoded, Header, ImageError
from convoy.data.images.oddities import convert

Image = npt.NDArray[np.uint8]  # (height, width, 3)
Memory = Callable[[int], npt.NDArray[np.uint8]]  # gives so many bytes, of any content

_REDUCTIONS = (8, 4, 2)
_INKS = {"CMYK", "YCCK"}
_FOR_PILLOW = {*_INKS, ODD}


def _fresh(count: int) -> npt.NDArray[np.uint8]:
    return np.empty(count, np.uint8)


def decode(
    encoded: Encoded,
    header: Header,
    least: tuple[int, int] | None = None,
    memory: Memory = _fresh,
) -> Image:
    """All pixels, or fewer if there are still at least (height, width)."""
    if header.kind == "jpeg" and header.colors not in _FOR_PILLOW:
        height, width = reduced(header, least)
        return _strict(encoded, "RGB", (height, width), memory(height * width * 3))
    if header.colors in _INKS:
        _strict(encoded, "CMYK", (header.height, header.width))  # Pillow would pass over damage
    return convert(encoded, header.kind)


def reduced(header: Header, least: tuple[int, int] | None) -> tuple[int, int]:
    """The smallest size, as (height, width), that decoding gives and that is large enough."""
    if least is not None and header.kind == "jpeg":
        for factor in _REDUCTIONS:
            height, width = -(-header.height // factor), -(-header.width // factor)
            if height >= least[0] and width >= least[1]:
                return height, width
    return header.height, header.width


def _strict(
    encoded: Encoded,
    colors: str,
    size: tuple[int, int],
    buffer: npt.NDArray[np.uint8] | None = None,
) -> Image:
    height, width = size
    try:
        pixels: Image = simplejpeg.decode_jpeg(
            encoded, colors, min_height=height, min_width=width, buffer=buffer
        )
    except ValueError as error:
        raise ImageError(f"damaged JPEG: {error}") from error
    return pixels
