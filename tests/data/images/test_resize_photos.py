"""Loading of encoded photos as network inputs, compared with Pillow."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from support.generated_images import damaged, jpeg, picture, saved

from convoy.data.images import resize as resize_module
from convoy.data.images.crop import Window, training_windows
from convoy.data.images.decode import ImageError, read_header
from convoy.data.images.resize import load_center_crop, load_training_photo
from convoy.data.source import Pixels


def training_pixels(
    encoded: bytes, window: Window, mirrored: bool = False, size: int = 64
) -> Pixels:
    out = np.zeros((size, size, 3), np.uint8)
    load_training_photo(encoded, read_header(encoded), window, mirrored, out)
    return out


def validation_pixels(encoded: bytes, size: int = 224) -> Pixels:
    out = np.zeros((size, size, 3), np.uint8)
    load_center_crop(encoded, size, out)
    return out


def resize_with_pillow(encoded: bytes, window: Window, size: int) -> Pixels:
    left, top, width, height = map(int, window)
    full = Image.open(BytesIO(encoded)).convert("RGB")
    cropped = full.crop((left, top, left + width, top + height))
    return np.asarray(cropped.resize((size, size), Image.Resampling.BILINEAR))


def difference(a: Pixels, b: Pixels) -> Pixels:
    return np.abs(a.astype(np.int64) - b)


def test_a_small_window_has_the_pixels_of_the_full_image() -> None:
    encoded, window = jpeg(picture(300, 400)), Window(30, 40, 120, 100)

    assert (
        difference(training_pixels(encoded, window), resize_with_pillow(encoded, window, 64)).mean()
        < 3
    )


@pytest.mark.parametrize("window", [Window(33, 41, 520, 530), Window(0, 0, 800, 600)])
def test_a_large_window_of_a_reduced_image_is_close_to_the_original(window: Window) -> None:
    encoded = jpeg(picture(600, 800))

    assert (
        difference(training_pixels(encoded, window), resize_with_pillow(encoded, window, 64)).mean()
        < 2
    )


@pytest.mark.parametrize(
    ("window", "factor"),
    [
        (Window(0, 0, 127, 400), 1),
        (Window(0, 0, 128, 128), 2),
        (Window(8, 8, 300, 255), 2),
        (Window(8, 8, 256, 256), 4),
        (Window(0, 0, 800, 600), 8),
    ],
)
def test_decoding_uses_the_lowest_sufficient_resolution(
    window: Window, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[int, ...]] = []
    resize_window = resize_module.resize_window
    monkeypatch.setattr(
        resize_module,
        "resize_window",
        lambda pixels, *rest: (decoded.append(pixels.shape), resize_window(pixels, *rest)),
    )
    training_pixels(jpeg(picture(600, 800)), window)

    assert decoded == [(600 // factor, 800 // factor, 3)]


def test_a_long_photo_is_used_up_to_its_edge_if_it_is_decoded_reduced() -> None:
    """Reduced sizes are rounded up: of 27 × 1000 pixels, an eighth has 4 × 125."""
    pixels, out = np.zeros((27, 1000, 3), np.uint8), np.zeros((4, 100, 3), np.uint8)
    pixels[24:] = 255
    encoded = jpeg(pixels)
    load_training_photo(encoded, read_header(encoded), Window(0, 0, 1000, 27), False, out)

    assert out[-1].min() > 200


@pytest.mark.parametrize("window", [Window(30, 40, 120, 100), Window(0, 0, 400, 300)])
@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
def test_a_flipped_window_is_an_exact_mirror_image(window: Window, image_format: str) -> None:
    encoded = saved(Image.fromarray(picture(300, 400)), image_format)

    assert np.array_equal(
        training_pixels(encoded, window, mirrored=True), training_pixels(encoded, window)[:, ::-1]
    )


@pytest.mark.parametrize(
    "sides", [(300, 400), (400, 300), (150, 160), (700, 900), (256, 355), (355, 256)]
)
def test_validation_is_resize_and_center_crop(sides: tuple[int, int]) -> None:
    """As torchvision's Resize and CenterCrop; of 355 pixels, the surplus of 131 is rounded up."""
    encoded = jpeg(picture(*sides))
    short = min(sides)
    height, width = (side * 256 // short for side in sides)
    resized = Image.open(BytesIO(encoded)).resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - 224) / 2.0), round((height - 224) / 2.0)
    expected = np.asarray(resized)[top : top + 224, left : left + 224]

    assert difference(validation_pixels(encoded), expected).max() <= 2


@pytest.mark.parametrize("size", [32, 64, 224])
def test_validation_decodes_very_large_images_at_their_full_size(size: int) -> None:
    encoded, short = jpeg(picture(1100, 1400)), size * 256 // 224
    height, width = short, 1400 * short // 1100
    resized = Image.open(BytesIO(encoded)).resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2.0), round((height - size) / 2.0)
    expected = np.asarray(resized)[top : top + size, left : left + size]

    assert difference(validation_pixels(encoded, size), expected).max() <= 2


def test_reduced_center_crops_are_close_to_full_ones() -> None:
    encoded = jpeg(picture(1100, 1400))
    reduced = np.zeros((224, 224, 3), np.uint8)
    load_center_crop(encoded, 224, reduced, reduced=True)

    changes = difference(validation_pixels(encoded), reduced)

    assert changes.max() > 2 and changes.mean() < 1


@pytest.mark.parametrize("sides", [(1, 1), (1, 10_000), (10_000, 1), (3, 2)])
def test_tiny_and_long_images_become_squares(sides: tuple[int, int]) -> None:
    encoded = jpeg(np.full((*sides, 3), 100, np.uint8))
    windows, _ = training_windows(np.array([sides]), np.array([0]), 0, 0)

    assert (validation_pixels(encoded) == 100).all()
    assert (training_pixels(encoded, Window(*windows[0].tolist())) == 100).all()


def test_uncommon_formats_become_squares() -> None:
    image = Image.fromarray(picture(60, 80))
    for mode, image_format in (("CMYK", "JPEG"), ("L", "JPEG"), ("P", "GIF"), ("RGBA", "PNG")):
        encoded = saved(image.convert(mode), image_format)

        assert validation_pixels(encoded, 32).std() > 10
        assert training_pixels(encoded, Window(5, 5, 40, 40), mirrored=True).std() > 10


def test_a_damaged_image_is_refused_and_writes_nothing() -> None:
    encoded, out = damaged(jpeg(picture(300, 400)), 0), np.zeros((64, 64, 3), np.uint8)
    with pytest.raises(ImageError, match="damaged JPEG"):
        load_training_photo(encoded, read_header(encoded), Window(0, 0, 90, 90), False, out)
    with pytest.raises(ImageError, match="damaged JPEG"):
        load_center_crop(encoded, 64, out)

    assert out.max() == 0


def test_an_epoch_matches_the_mean_and_deviation_of_its_colors() -> None:
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    colors = np.random.default_rng(0).integers(0, 256, (80, 3))
    sizes = np.tile([60, 90], (80, 1))
    windows, mirrored = training_windows(sizes, np.arange(80), 0, 0)
    epoch = [
        training_pixels(jpeg(np.full((60, 90, 3), color, np.uint8), 100), Window(*window), flip, 32)
        for color, window, flip in zip(colors, windows.tolist(), mirrored.tolist(), strict=True)
    ]
    normalized = (np.array(epoch) / 255 - mean) / deviation
    expected = (colors / 255 - mean) / deviation
    tolerance = 2 / 255 / deviation.min()  # two levels for JPEG color conversion

    assert np.abs(normalized.mean(axis=(0, 1, 2)) - expected.mean(axis=0)).max() < tolerance
    assert np.abs(normalized.std(axis=(0, 1, 2)) - expected.std(axis=0)).max() < tolerance
