"""Targets for `tools/fuzz.py`: image headers and image decoding."""

from io import BytesIO

import numpy as np
from PIL import Image

from convoy.data.images.decode import MAX_PIXELS, MAX_SIDE, ImageError, decode, read_header

ERRORS = (ImageError,)
_FORMATS = ("PNG", "GIF", "BMP", "WEBP")


def jpegs() -> list[bytes]:
    """Baseline, progressive, gray, CMYK, without subsampling, with comment, with rotation."""
    rotated = Image.Exif()
    rotated[0x0112] = 6
    return [
        _encode("RGB", "JPEG"),
        _encode("RGB", "JPEG", progressive=True),
        _encode("L", "JPEG", comment=b"some words"),
        _encode("CMYK", "JPEG"),
        _encode("RGB", "JPEG", subsampling=0, exif=rotated),
    ]


def images() -> list[bytes]:
    """Images of every supported format."""
    return [
        *jpegs(),
        *(_encode("RGB", image_format) for image_format in _FORMATS),
        _encode("P", "GIF"),
    ]


def check_header(encoded: bytes) -> None:
    """The size in an accepted header is within the limits."""
    header = read_header(encoded)

    assert 1 <= header.width <= MAX_SIDE
    assert 1 <= header.height <= MAX_SIDE
    assert header.width * header.height <= MAX_PIXELS


def read_image(encoded: bytes) -> None:
    """Decoded pixels have the size of the header; large images are skipped to save time."""
    header = read_header(encoded)
    if header.width * header.height <= 10_000:
        pixels = decode(encoded, header)

        assert pixels.shape == (header.height, header.width, 3)
        assert pixels.dtype == np.uint8


def _encode(mode: str, image_format: str, **options: object) -> bytes:
    waves = np.sin(np.arange(24)[:, None, None] / 5 + np.arange(40)[:, None] / 7 + np.arange(3))
    file = BytesIO()
    Image.fromarray((waves * 120 + 128).astype(np.uint8)).convert(mode).save(
        file, image_format, **options
    )
    return file.getvalue()
