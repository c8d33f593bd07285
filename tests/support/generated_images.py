"""Small pictures made for the tests: smooth, with edges and some noise, as photos are."""

from io import BytesIO

import numpy as np
import simplejpeg
from PIL import Image

from convoy.data.source import Pixels


def picture(height: int, width: int, seed: int = 0) -> Pixels:
    """(height, width, 3): waves of three colors, a box, and grain."""
    chance = np.random.default_rng(seed)
    down, across = np.mgrid[0:height, 0:width] / max(height, width)
    waves = chance.uniform(2, 9, (2, 3))
    turn = chance.uniform(0, 6, 3)
    output = 0.5 + 0.4 * np.sin(down[..., None] * waves[0] + across[..., None] * waves[1] + turn)
    output[height // 4 : height // 2, width // 3 : width * 3 // 4] = chance.uniform(0, 1, 3)
    output += chance.normal(0, 0.03, output.shape)
    return (output.clip(0, 1) * 255).astype(np.uint8)


def jpeg(pixels: Pixels, quality: int = 90, subsampling: str = "420") -> bytes:
    encoded: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality, colorsubsampling=subsampling
    )
    return encoded


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    """A whole file of that form, as Pillow writes it."""
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def claiming(encoded: bytes, height: int, width: int) -> bytes:
    """A baseline JPEG whose header tells another size."""
    place = encoded.index(b"\xff\xc0") + 5
    return encoded[:place] + height.to_bytes(2) + width.to_bytes(2) + encoded[place + 4 :]


def entropy_start(encoded: bytes) -> int:
    """Where the header of a JPEG ends and its pixels begin."""
    place = encoded.index(b"\xff\xda")
    return place + 2 + int.from_bytes(encoded[place + 2 : place + 4])


def damaged(encoded: bytes, seed: int, count: int = 16) -> bytes:
    """So many bytes of the pixels replaced by others, all within one stretch of 4 KB."""
    chance = np.random.default_rng(seed)
    output = bytearray(encoded)
    first = entropy_start(encoded)
    stretch = int(chance.integers(first, max(first + 1, len(output) - 4096)))
    for place in chance.integers(stretch, min(stretch + 4096, len(output) - 2), count):
        output[place] = int(chance.integers(256))
    return bytes(output)
