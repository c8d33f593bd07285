"""Strict decoding: correct pixels or an ImageError, at full or reduced size."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from support.generated_images import damaged, entropy_start, jpeg, picture, saved

from convoy.data.images.decode import ImageError, ImageHeader, decode, read_header, reduced_size
from convoy.data.source import Pixels

FULL = jpeg(picture(120, 200))


def decode_with_pillow(encoded: bytes) -> Pixels:
    return np.asarray(Image.open(BytesIO(encoded)).convert("RGB"))


def difference(a: Pixels, b: Pixels) -> Pixels:
    return np.abs(a.astype(np.int64) - b)


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411"])
def test_pixels_match_pillow(subsampling: str) -> None:
    encoded = jpeg(picture(61, 83), subsampling=subsampling)

    assert difference(decode(encoded, read_header(encoded)), decode_with_pillow(encoded)).max() <= 2


@pytest.mark.parametrize("sides", [(1, 1), (1, 2), (3, 7), (7, 3), (8, 8), (9, 1), (1, 10_000)])
def test_tiny_and_long_images_keep_every_pixel(sides: tuple[int, int]) -> None:
    encoded = jpeg(picture(*sides), subsampling="444")
    pixels = decode(encoded, read_header(encoded))

    assert pixels.shape == (*sides, 3)
    assert difference(pixels, decode_with_pillow(encoded)).max() <= 2


def test_a_progressive_jpeg_is_decoded_like_any_other() -> None:
    encoded = saved(Image.fromarray(picture(60, 90)), "JPEG", progressive=True)

    assert difference(decode(encoded, read_header(encoded)), decode_with_pillow(encoded)).max() <= 2


def test_gray_images_become_three_equal_channels() -> None:
    encoded = saved(Image.fromarray(picture(60, 90)).convert("L"), "JPEG")
    pixels = decode(encoded, read_header(encoded))

    assert pixels.shape == (60, 90, 3)
    assert np.ptp(pixels, axis=2).max() == 0


def test_exif_rotation_is_not_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    encoded = saved(Image.fromarray(picture(60, 90)), "JPEG", exif=exif)

    assert decode(encoded, read_header(encoded)).shape == (60, 90, 3)


@pytest.mark.parametrize("colors", ["CMYK", "YCCK"])
def test_cmyk_is_converted_as_by_pillow(colors: str) -> None:
    plain = saved(Image.fromarray(picture(60, 90)).convert("CMYK"), "JPEG")
    offset = plain.index(b"Adobe") + 11  # the byte for the color transform
    encoded = plain[:offset] + bytes([2 if colors == "YCCK" else 0]) + plain[offset + 1 :]

    assert read_header(encoded).colors == colors
    assert np.array_equal(decode(encoded, read_header(encoded)), decode_with_pillow(encoded))


def test_a_damaged_cmyk_jpeg_is_refused() -> None:
    full = saved(Image.fromarray(picture(200, 300)).convert("CMYK"), "JPEG")
    refused = sum(is_refused(damaged(full, seed, 32)) for seed in range(40))

    assert refused >= 36


def test_a_jpeg_with_uncommon_subsampling_is_decoded() -> None:
    offset = FULL.index(b"\xff\xc0") + 11
    uncommon = FULL[:offset] + b"\x14" + FULL[offset + 1 :]

    assert decode(uncommon, read_header(uncommon)).shape == (120, 200, 3)


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_reduced_image_is_the_mean_of_the_full_image(factor: int) -> None:
    encoded = jpeg(picture(160, 240), 95, "444")
    full = decode(encoded, read_header(encoded)).astype(np.float64)
    means = full.reshape(160 // factor, factor, 240 // factor, factor, 3).mean(axis=(1, 3))
    small = decode(encoded, read_header(encoded), (160 // factor, 240 // factor))

    assert small.shape == (160 // factor, 240 // factor, 3)
    assert np.abs(small - means).mean() < 1


@pytest.mark.parametrize(
    ("min_size", "size"),
    [
        (None, (375, 500)),
        ((375, 500), (375, 500)),
        ((189, 250), (375, 500)),
        ((188, 251), (375, 500)),
        ((188, 250), (188, 250)),
        ((95, 125), (188, 250)),
        ((94, 125), (94, 125)),
        ((47, 63), (47, 63)),
        ((1, 1), (47, 63)),
        ((400, 1), (375, 500)),
    ],
)
def test_an_image_is_not_reduced_below_the_minimum_size(
    min_size: tuple[int, int] | None, size: tuple[int, int]
) -> None:
    encoded = jpeg(picture(375, 500))

    assert reduced_size(read_header(encoded), min_size) == size
    assert decode(encoded, read_header(encoded), min_size).shape == (*size, 3)


def test_only_a_jpeg_can_be_reduced() -> None:
    assert reduced_size(ImageHeader("png", 500, 375, "RGB"), (1, 1)) == (375, 500)


def test_pixels_are_written_to_the_allocated_buffer() -> None:
    buffer = np.zeros(120 * 200 * 3, np.uint8)
    pixels = decode(FULL, read_header(FULL), allocate=lambda count: buffer[:count])

    assert np.shares_memory(pixels, buffer)
    assert np.array_equal(pixels, decode(FULL, read_header(FULL)))


def is_refused(encoded: bytes) -> bool:
    """Whether decoding raises ImageError; otherwise the shape must be valid."""
    try:
        header = read_header(encoded)
        pixels = decode(encoded, header)
    except ImageError as refused:
        assert str(refused).isprintable()
        return True
    assert pixels.shape == (header.height, header.width, 3)
    assert pixels.dtype == np.uint8
    return False


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_truncated_jpeg_is_refused(share: float, progressive: bool) -> None:
    full = saved(Image.fromarray(picture(300, 400)), "JPEG", progressive=progressive)

    assert is_refused(full[: int(len(full) * share)])
    assert is_refused(full[:-3])  # the end marker and one byte before it


@pytest.mark.parametrize("image_format", ["PNG", "GIF", "BMP", "WEBP"])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_truncated_files_of_other_formats_are_refused(image_format: str, share: float) -> None:
    full = saved(Image.fromarray(picture(100, 150)), image_format)

    assert is_refused(full[: int(len(full) * share)])


def test_nine_of_ten_damaged_jpegs_are_refused() -> None:
    refused = sum(is_refused(damaged(jpeg(picture(300, 400, seed)), seed)) for seed in range(200))

    assert refused >= 180


def test_extra_bytes_are_refused_only_before_the_end_marker() -> None:
    assert is_refused(FULL[:-2] + b"\x12" * 64 + FULL[-2:])
    assert not is_refused(FULL + b"some text behind the image")


def test_stray_bytes_before_the_pixels_are_refused() -> None:
    offset = entropy_start(FULL)

    assert is_refused(FULL[:offset] + b"\xff\xd3" + FULL[offset:])
