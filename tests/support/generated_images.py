"""Small generated images: smooth, with edges and some noise, like photos."""

from io import BytesIO

import numpy as np
import simplejpeg
from PIL import Image

from convoy.data.source import Pixels


def picture(height: int, width: int, seed: int = 0) -> Pixels:
    """(height, width, 3): waves of three colors, a box, and grain."""
    rng = np.random.default_rng(seed)
    down, across = np.mgrid[0:height, 0:width] / max(height, width)
    waves = rng.uniform(2, 9, (2, 3))
    phase = rng.uniform(0, 6, 3)
    output = 0.5 + 0.4 * np.sin(down[..., None] * waves[0] + across[..., None] * waves[1] + phase)
    output[height // 4 : height // 2, width // 3 : width * 3 // 4] = rng.uniform(0, 1, 3)
    output += rng.normal(0, 0.03, output.shape)
    return (output.clip(0, 1) * 255).astype(np.uint8)


def jpeg(pixels: Pixels, quality: int = 90, subsampling: str = "420") -> bytes:
    encoded: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality, colorsubsampling=subsampling
    )
    return encoded


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    """A file of this format, written by Pillow."""
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def with_header_size(encoded: bytes, height: int, width: int) -> bytes:
    """A baseline JPEG whose header has a different size."""
    offset = encoded.index(b"\xff\xc0") + 5
    return encoded[:offset] + height.to_bytes(2) + width.to_bytes(2) + encoded[offset + 4 :]


def entropy_start(encoded: bytes) -> int:
    """The offset of the pixels behind the header of a JPEG."""
    offset = encoded.index(b"\xff\xda")
    return offset + 2 + int.from_bytes(encoded[offset + 2 : offset + 4])


def damaged(encoded: bytes, seed: int, count: int = 16) -> bytes:
    """Replace `count` bytes of the pixels, all within one range of 4 KB."""
    rng = np.random.default_rng(seed)
    output = bytearray(encoded)
    first = entropy_start(encoded)
    start = int(rng.integers(first, max(first + 1, len(output) - 4096)))
    for offset in rng.integers(start, min(start + 4096, len(output) - 2), count):
        output[offset] = int(rng.integers(256))
    return bytes(output)
