"""Pixels of an image. Ordinary JPEG by libjpeg-turbo; by Pillow PNG, GIF, BMP, WebP, CMYK JPEG.

The result is always rows of RGB bytes:

    16-bit grey or color   the high byte of each value
    palette                the colors it names; of an animation the first frame
    transparency           dropped: the colors beneath it stay, nothing is blended
    CMYK                   RGB by Pillow's plain formula, inverted where Adobe wrote it so
    rotation in EXIF       not applied, as in the reference pipelines
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import simplejpeg  # type: ignore[import-untyped]  # it brings no types

from convoy.data.images.header import (
    UNCOMMON,
    Encoded,
    Header,
    ImageError,
    ImageFormat,
    open_with_pillow,
)

_DEEP = "I;16"  # Pillow's word for 16-bit grey; all else it reads as bytes


def decode_with_pillow(encoded: Encoded, kind: ImageFormat) -> npt.NDArray[np.uint8]:
    """All pixels, (height, width, 3)."""
    with open_with_pillow(encoded, kind) as image:
        if image.mode == _DEEP:
            # Pillow's own conversion would turn all that is above 255 into white.
            high = (np.asarray(image) >> 8).astype(np.uint8)
            return np.repeat(high[:, :, None], 3, axis=2)
        return np.array(image.convert("RGB"))


Image = npt.NDArray[np.uint8]  # (height, width, 3)
Allocate = Callable[[int], npt.NDArray[np.uint8]]  # allocates so many bytes, of any content

_REDUCTIONS = (8, 4, 2)
_INKS = {"CMYK", "YCCK"}
_FOR_PILLOW = {*_INKS, UNCOMMON}


def _fresh(count: int) -> npt.NDArray[np.uint8]:
    return np.empty(count, np.uint8)


def decode(
    encoded: Encoded,
    header: Header,
    least: tuple[int, int] | None = None,
    allocate: Allocate = _fresh,
) -> Image:
    """All pixels, or fewer if there are still at least (height, width)."""
    if header.kind == "jpeg" and header.colors not in _FOR_PILLOW:
        height, width = reduced(header, least)
        return _strict(encoded, "RGB", (height, width), allocate(height * width * 3))
    if header.colors in _INKS:
        _strict(encoded, "CMYK", (header.height, header.width))  # Pillow would pass over damage
    return decode_with_pillow(encoded, header.kind)


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
