"""The header of an image, then its pixels.

Nothing of the size that a header claims is allocated, and what exceeds the limits is never decoded.
Ordinary JPEG is read by libjpeg-turbo; PNG, GIF, BMP, WebP, CMYK JPEG by Pillow.

The result is always rows of RGB bytes:

    16-bit grey or color   the high byte of each value
    palette                the colors it names; of an animation the first frame
    transparency           dropped: the colors beneath it stay, nothing is blended
    CMYK                   RGB by Pillow's plain formula, inverted where Adobe wrote it so
    rotation in EXIF       not applied, as in the reference pipelines
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg  # type: ignore[import-untyped]  # it brings no types
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

ImageFormat = Literal["jpeg", "png", "gif", "bmp", "webp"]
Encoded = bytes | memoryview

MOST_SIDE = 20_000
MOST_PIXELS = 89_000_000  # of 3 bytes; Pillow draws the same line at 89.5 million

UNCOMMON = "uncommon"  # colors of a JPEG that only Pillow can decode

# The readers themselves, not Image.open: it would try others, and warn before our limit refuses.
# TIFF is left out: its reader passes over damaged tags, and no known data set comes in it.
_READERS: dict[ImageFormat, type[ImageFile]] = {
    "jpeg": JpegImageFile,
    "png": PngImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
    "webp": WebPImageFile,
}
_STARTS: dict[bytes, ImageFormat] = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"BM": "bmp",
    b"RIFF": "webp",
}
_LONGEST_START = max(map(len, _STARTS))


class ImageError(ValueError):
    """An image that cannot be used; the text is a reason without a name, which the caller knows."""


class Header(NamedTuple):
    """What is known of an image before it is decoded."""

    kind: ImageFormat
    width: int
    height: int
    colors: str  # as its reader calls them


def read_header(encoded: Encoded) -> Header:
    """The header of an image that may be decoded; ImageError for all others."""
    kind = _kind(bytes(encoded[:_LONGEST_START]))
    header = _jpeg(encoded) if kind == "jpeg" else _other(encoded, kind)
    _, width, height, _ = header
    if width < 1 or height < 1:
        raise ImageError(f"{width} × {height} pixels is no image")
    if max(width, height) > MOST_SIDE or width * height > MOST_PIXELS:
        raise ImageError(
            f"{width} × {height} pixels is too large: at most {MOST_SIDE:,} a side "
            f"and {MOST_PIXELS:,} in all"
        )
    return header


@contextmanager
def open_with_pillow(encoded: Encoded, kind: ImageFormat) -> Iterator[ImageFile]:
    """The image without its pixels; ImageError for whatever Pillow raises."""
    try:
        with _READERS[kind](BytesIO(encoded)) as image:
            yield image
    except Exception as error:  # Pillow's readers raise a dozen kinds, by what they stumble over
        raise ImageError(f"damaged {kind.upper()}: {_reason(error)}") from error


def _kind(start: bytes) -> ImageFormat:
    for known, kind in _STARTS.items():
        if start.startswith(known):
            return kind
    if not start:
        raise ImageError("it is empty")
    raise ImageError(f"no JPEG, PNG, GIF, BMP or WebP image: it begins with {start[:4]!r}")


def _jpeg(encoded: Encoded) -> Header:
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(encoded)
    except (ValueError, KeyError):  # damaged, or sampled in a way that the decoder has no name for
        return _other(encoded, "jpeg")._replace(colors=UNCOMMON)
    return Header("jpeg", width, height, colors)


def _other(encoded: Encoded, kind: ImageFormat) -> Header:
    with open_with_pillow(encoded, kind) as image:
        return Header(kind, image.width, image.height, image.mode)


def _reason(error: Exception) -> str:
    """One line that can be printed."""
    text = " ".join(str(error).split())
    return text if text and text.isprintable() else type(error).__name__


_DEEP = "I;16"  # Pillow's word for 16-bit grey; all else it reads as bytes


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
    with open_with_pillow(encoded, header.kind) as image:
        if image.mode == _DEEP:
            # Pillow's own conversion would turn all that is above 255 into white.
            high = (np.asarray(image) >> 8).astype(np.uint8)
            return np.repeat(high[:, :, None], 3, axis=2)
        return np.array(image.convert("RGB"))


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
