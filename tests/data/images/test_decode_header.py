"""Image headers: which images are accepted, and which are refused without decoding."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image
from support.generated_images import jpeg, picture, saved, with_header_size

from convoy.data.images.decode import MAX_SIDE, PILLOW_ONLY, ImageError, ImageHeader, read_header

SMALL = jpeg(picture(24, 40))


def image(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(picture(24, 40)).convert(mode)


@pytest.mark.parametrize("image_format", ["PNG", "GIF", "BMP", "WEBP"])
def test_formats_are_detected_by_their_first_bytes(image_format: str) -> None:
    header = read_header(saved(image(), image_format))

    assert header[:3] == (image_format.lower(), 40, 24)


def test_size_and_colors_of_a_jpeg_are_read() -> None:
    assert read_header(SMALL) == ImageHeader("jpeg", 40, 24, "YCbCr")
    assert read_header(memoryview(SMALL)) == read_header(SMALL)
    assert read_header(saved(image("L"), "JPEG")).colors == "Gray"
    assert read_header(saved(image("CMYK"), "JPEG")).colors == "CMYK"


def test_the_header_of_a_progressive_jpeg_is_read() -> None:
    assert read_header(saved(image(), "JPEG", progressive=True)) == ImageHeader(
        "jpeg", 40, 24, "YCbCr"
    )


def test_a_jpeg_with_uncommon_subsampling_is_left_to_pillow() -> None:
    offset = SMALL.index(b"\xff\xc0") + 11  # the sampling factors of the first channel
    for sampling in (0x14, 0x31, 0x42):
        uncommon = SMALL[:offset] + bytes([sampling]) + SMALL[offset + 1 :]

        assert read_header(uncommon) == ImageHeader("jpeg", 40, 24, PILLOW_ONLY)


@pytest.mark.parametrize(
    "sides",
    [(13_000, 13_000), (65_500, 65_500), (1, MAX_SIDE + 1), (MAX_SIDE + 1, 1), (9_434, 9_434)],
)
def test_a_jpeg_that_claims_too_many_pixels_is_refused(sides: tuple[int, int]) -> None:
    with pytest.raises(ImageError, match=f"{sides[1]} × {sides[0]} pixels is too large"):
        read_header(with_header_size(SMALL, *sides))


def test_an_image_at_the_limits_is_accepted() -> None:
    assert read_header(with_header_size(SMALL, MAX_SIDE, 4_450)).height == MAX_SIDE
    assert read_header(with_header_size(SMALL, 9_400, 9_468)).width == 9_468  # 88 999 200 pixels
    with pytest.raises(ImageError):
        read_header(with_header_size(SMALL, 9_400, 9_469))


def test_a_png_that_claims_too_many_pixels_is_refused() -> None:
    encoded = bytearray(saved(image(), "PNG"))
    encoded[16:24] = (60_000).to_bytes(4) * 2

    with pytest.raises(ImageError, match=r"damaged PNG|too large"):
        read_header(bytes(encoded))


@pytest.mark.parametrize("image_format", ["PNG", "GIF", "BMP"])
def test_sides_above_the_limit_are_refused_in_every_format(image_format: str) -> None:
    long = Image.new("L", (MAX_SIDE + 1, 1))

    with pytest.raises(ImageError, match="20,000 per side and 89,000,000 in total"):
        read_header(saved(long, image_format))


@pytest.mark.parametrize("sides", [(0, 40), (24, 0)])
def test_an_image_without_pixels_is_refused(sides: tuple[int, int]) -> None:
    with pytest.raises(ImageError):
        read_header(with_header_size(SMALL, *sides))


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "the file is empty"),
        (b"\xff\xd8\xff", "damaged JPEG"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "damaged JPEG"),
        (b"hello, world", "it starts with b'hell'"),
        (b"\x00\x00\x01\x00 an icon", "not a JPEG, PNG, GIF, BMP or WebP"),
        (saved(image(), "TIFF"), "not a JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "not a JPEG"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", "damaged WEBP"),
        (b"\x89PNG\r\n\x1a\n", "damaged PNG"),
    ],
)
def test_unsupported_formats_are_refused(encoded: bytes, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        read_header(encoded)


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_a_truncated_header_is_refused_in_one_line(image_format: str) -> None:
    full = saved(image(), image_format)
    for length in range(2, 20):
        with pytest.raises(ImageError) as refused:
            read_header(full[:length])

        assert str(refused.value).isprintable()


@pytest.mark.processes
@pytest.mark.parametrize("sides", [(13_000, 13_000), (65_500, 65_500)])
def test_a_small_file_that_claims_to_be_huge_takes_no_memory(sides: tuple[int, int]) -> None:
    bomb = with_header_size(jpeg(np.zeros((8, 8, 3), np.uint8)) + bytes(2_500), *sides)
    script = f"""
        import resource
        from convoy.data.images.decode import ImageError, read_header

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            read_header(bytes.fromhex("{bomb.hex()}"))
        except ImageError as refused:
            assert "too large" in str(refused)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=True, capture_output=True, text=True
    )

    assert int(result.stdout) < 64 * 2**10  # in KiB
