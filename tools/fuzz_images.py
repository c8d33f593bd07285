"""Targets for `tools/fuzz.py`: the gate before images, and what lies behind it."""

from io import BytesIO

import numpy as np
from PIL import Image

from convoy.data.images.decode import MAX_PIXELS, MAX_SIDE, ImageError, decode, read_header

ERRORS = (ImageError,)
_FORMS = ("PNG", "GIF", "BMP", "WEBP")


def jpegs() -> list[bytes]:
    """Plain, progressive, gray, of four inks, sampled in two ways, with words and a rotation."""
    turned = Image.Exif()
    turned[0x0112] = 6
    return [
        _saved("RGB", "JPEG"),
        _saved("RGB", "JPEG", progressive=True),
        _saved("L", "JPEG", comment=b"some words"),
        _saved("CMYK", "JPEG"),
        _saved("RGB", "JPEG", subsampling=0, exif=turned),
    ]


def images() -> list[bytes]:
    """Of every kind."""
    return [*jpegs(), *(_saved("RGB", form) for form in _FORMS), _saved("P", "GIF")]


def check_header(encoded: bytes) -> None:
    """What passes the header check keeps its limits."""
    header = read_header(encoded)

    assert 1 <= header.width <= MAX_SIDE
    assert 1 <= header.height <= MAX_SIDE
    assert header.width * header.height <= MAX_PIXELS


def read_image(encoded: bytes) -> None:
    """What is decoded has the size that the gate told; large ones are left out, for their time."""
    header = read_header(encoded)
    if header.width * header.height <= 10_000:
        pixels = decode(encoded, header)

        assert pixels.shape == (header.height, header.width, 3)
        assert pixels.dtype == np.uint8


def _saved(mode: str, form: str, **options: object) -> bytes:
    waves = np.sin(np.arange(24)[:, None, None] / 5 + np.arange(40)[:, None] / 7 + np.arange(3))
    file = BytesIO()
    Image.fromarray((waves * 120 + 128).astype(np.uint8)).convert(mode).save(file, form, **options)
    return file.getvalue()
