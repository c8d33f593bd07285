"""What kind of image bytes are, and how large, from the header alone, before decoding.

    bytes ─→ kind by the first bytes ─→ header ─→ limits ─→ Header

Nothing of the size that a header claims is allocated, and what exceeds the limits is never
decoded. JPEG headers are read by the decoder itself (3 µs), all others lazily by Pillow.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Literal, NamedTuple

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
    _check(header.width, header.height)
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


def _check(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"{width} × {height} pixels is no image")
    if max(width, height) > MOST_SIDE or width * height > MOST_PIXELS:
        raise ImageError(
            f"{width} × {height} pixels is too large: at most {MOST_SIDE:,} a side "
            f"and {MOST_PIXELS:,} in all"
        )


def _reason(error: Exception) -> str:
    """One line that can be printed."""
    text = " ".join(str(error).split())
    return text if text and text.isprintable() else type(error).__name__
