"""Decoding of PNG, GIF, BMP, WebP and uncommon color modes."""

from zlib import compress, crc32

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.generated_images import picture, saved

from convoy.data.images.decode import ImageError, decode, read_header
from convoy.data.source import Pixels

PIXELS = picture(30, 50)
IMAGE = Image.fromarray(PIXELS)


def decoded(encoded: bytes) -> Pixels:
    pixels = decode(encoded, read_header(encoded))
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    return pixels


@pytest.mark.parametrize("image_format", ["PNG", "BMP"])
def test_lossless_formats_give_the_same_pixels(image_format: str) -> None:
    assert np.array_equal(decoded(saved(IMAGE, image_format)), PIXELS)


def test_a_lossless_webp_gives_the_same_pixels() -> None:
    assert np.array_equal(decoded(saved(IMAGE, "WEBP", lossless=True)), PIXELS)


def test_sixteen_bit_gray_keeps_the_high_byte() -> None:
    deep = np.arange(30 * 50, dtype=np.uint16).reshape(30, 50) * 43
    pixels = decoded(saved(Image.fromarray(deep), "PNG"))

    assert np.array_equal(pixels, np.repeat((deep >> 8)[:, :, None], 3, axis=2))
    assert pixels.max() == 251


def deep_color_png(values: npt.NDArray[np.uint16]) -> bytes:
    """Write a 16-bit PNG, which Pillow can only read."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4) + name + body + crc32(name + body).to_bytes(4)

    height, width, _ = values.shape
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([16, 2, 0, 0, 0])
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_sixteen_bit_color_keeps_the_high_byte() -> None:
    deep = (np.arange(30 * 50 * 3, dtype=np.uint16) * 14).reshape(30, 50, 3)

    assert np.array_equal(decoded(deep_color_png(deep)), deep >> 8)


def test_a_palette_becomes_its_colors() -> None:
    quantized = IMAGE.quantize(16)
    expected = np.asarray(quantized.convert("RGB"))

    assert np.array_equal(decoded(saved(quantized, "GIF")), expected)
    assert np.array_equal(decoded(saved(quantized, "PNG")), expected)


def test_the_first_frame_of_an_animation_is_used() -> None:
    frames = [Image.new("RGB", (50, 30), color) for color in ("red", "green", "blue")]
    encoded = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])

    assert (decoded(encoded) == (255, 0, 0)).all()


def test_transparency_is_dropped_without_blending() -> None:
    transparent = np.dstack([PIXELS, np.full((30, 50), 7, np.uint8)])
    gray = Image.fromarray(PIXELS).convert("LA")

    assert np.array_equal(decoded(saved(Image.fromarray(transparent), "PNG")), PIXELS)
    assert decoded(saved(gray, "PNG")).shape == (30, 50, 3)


def test_one_bit_images_become_black_and_white_pixels() -> None:
    encoded = saved(IMAGE.convert("1"), "PNG")

    assert set(np.unique(decoded(encoded))) == {0, 255}


def test_a_png_with_a_wrong_checksum_is_refused() -> None:
    encoded = bytearray(saved(IMAGE, "PNG"))
    encoded[len(encoded) // 2] ^= 1

    with pytest.raises(ImageError, match="damaged PNG"):
        decoded(bytes(encoded))
