"""Read image headers and decode images to RGB.

The header is checked first: images above the size limits are refused before any allocation.
JPEG is decoded by libjpeg-turbo; PNG, GIF, BMP, WebP and CMYK JPEG by Pillow.

The result is always (height, width, 3) RGB bytes:

    16-bit gray or color   the high byte of each value
    palette                its colors; for an animation, the first frame
    transparency           dropped without blending
    CMYK                   converted to RGB by Pillow, inverted for Adobe files
    EXIF rotation          not applied, as in the reference pipelines
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg  # type: ignore[import-untyped]  # it has no type hints
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from convoy.data.records.record import BadContentError

ImageFormat = Literal["jpeg", "png", "gif", "bmp", "webp"]
Encoded = bytes | memoryview

MAX_SIDE = 20_000
MAX_PIXELS = 89_000_000  # of 3 bytes each; Pillow's limit is 89.5 million

PILLOW_ONLY = "uncommon"  # color space of a JPEG that only Pillow can decode

# Not Image.open, which tries other formats and warns before the size limit applies.
# No TIFF: Pillow ignores damaged tags, and no known dataset uses it.
_PILLOW_READERS: dict[ImageFormat, type[ImageFile]] = {
    "jpeg": JpegImageFile,
    "png": PngImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
    "webp": WebPImageFile,
}
_SIGNATURES: dict[bytes, ImageFormat] = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"BM": "bmp",
    b"RIFF": "webp",
}
_MAX_SIGNATURE_BYTES = max(map(len, _SIGNATURES))


class ImageError(BadContentError):
    """An unusable image."""


class ImageHeader(NamedTuple):
    """Format, size and color space of an image, read without decoding it."""

    format: ImageFormat
    width: int
    height: int
    colors: str  # as named by its decoder


def read_header(encoded: Encoded) -> ImageHeader:
    """Read the header of an image; raise ImageError if the image cannot be decoded."""
    image_format = _detect_format(bytes(encoded[:_MAX_SIGNATURE_BYTES]))
    is_jpeg = image_format == "jpeg"
    header = _read_jpeg_header(encoded) if is_jpeg else _read_pillow_header(encoded, image_format)
    _, width, height, _ = header
    if width < 1 or height < 1:
        raise ImageError(f"{width} × {height} pixels is not a valid image size")
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise ImageError(
            f"{width} × {height} pixels is too large: the limit is {MAX_SIDE:,} per side "
            f"and {MAX_PIXELS:,} in total"
        )
    return header


@contextmanager
def open_with_pillow(encoded: Encoded, image_format: ImageFormat) -> Iterator[ImageFile]:
    """Open an image without decoding it; every Pillow error becomes an ImageError."""
    try:
        with _PILLOW_READERS[image_format](BytesIO(encoded)) as image:
            yield image
    except Exception as error:  # Pillow raises a dozen different types
        raise ImageError(f"damaged {image_format.upper()}: {_describe_error(error)}") from error


def _detect_format(start: bytes) -> ImageFormat:
    for signature, image_format in _SIGNATURES.items():
        if start.startswith(signature):
            return image_format
    if not start:
        raise ImageError("the file is empty")
    raise ImageError(f"not a JPEG, PNG, GIF, BMP or WebP image: it starts with {start[:4]!r}")


def _read_jpeg_header(encoded: Encoded) -> ImageHeader:
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(encoded)
    except (ValueError, KeyError):  # damaged, or with a subsampling unknown to the decoder
        return _read_pillow_header(encoded, "jpeg")._replace(colors=PILLOW_ONLY)
    return ImageHeader("jpeg", width, height, colors)


def _read_pillow_header(encoded: Encoded, image_format: ImageFormat) -> ImageHeader:
    with open_with_pillow(encoded, image_format) as image:
        return ImageHeader(image_format, image.width, image.height, image.mode)


def _describe_error(error: Exception) -> str:
    """Return the message as one printable line."""
    text = " ".join(str(error).split())
    return text if text and text.isprintable() else type(error).__name__


Image = npt.NDArray[np.uint8]  # (height, width, 3)
Allocate = Callable[[int], npt.NDArray[np.uint8]]  # allocates uninitialized bytes

_PILLOW_16_BIT_MODE = "I;16"  # 16-bit gray; Pillow reads everything else as bytes
_JPEG_SCALE_FACTORS = (8, 4, 2)
_CMYK_MODES = {"CMYK", "YCCK"}
_PILLOW_MODES = {*_CMYK_MODES, PILLOW_ONLY}


def decode(
    encoded: Encoded,
    header: ImageHeader,
    min_size: tuple[int, int] | None = None,
    allocate: Allocate | None = None,
) -> Image:
    """Decode an image; JPEG may be downscaled while decoding to no less than `min_size`."""
    if header.format == "jpeg" and header.colors not in _PILLOW_MODES:
        height, width = reduced_size(header, min_size)
        buffer = allocate(height * width * 3) if allocate else None
        return _decode_jpeg_strict(encoded, "RGB", (height, width), buffer)
    if header.colors in _CMYK_MODES:
        # Pillow would ignore damage.
        _decode_jpeg_strict(encoded, "CMYK", (header.height, header.width))
    with open_with_pillow(encoded, header.format) as image:
        if image.mode == _PILLOW_16_BIT_MODE:
            # Pillow's conversion clips everything above 255 to white.
            high = (np.asarray(image) >> 8).astype(np.uint8)
            return np.repeat(high[:, :, None], 3, axis=2)
        return np.array(image.convert("RGB"))


def reduced_size(header: ImageHeader, min_size: tuple[int, int] | None) -> tuple[int, int]:
    """Return the smallest (height, width) that decoding supports, at least `min_size`."""
    if min_size is not None and header.format == "jpeg":
        for factor in _JPEG_SCALE_FACTORS:
            height, width = -(-header.height // factor), -(-header.width // factor)
            if height >= min_size[0] and width >= min_size[1]:
                return height, width
    return header.height, header.width


def _decode_jpeg_strict(
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
