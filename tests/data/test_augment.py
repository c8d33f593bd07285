"""Crops and flips, compared with a loop over pixels."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.data.augment import (
    NO_AUGMENTATION,
    PAD_CROP_FLIP,
    Augmentation,
    crop_and_flip,
)
from convoy.data.source import Ids, Pixels
from convoy.rng import integers, key


@dataclass(frozen=True)
class Corner:
    """The corner of a crop in the padded image, and whether the crop is mirrored."""

    top: int
    left: int
    mirrored: bool


def crop_pixel_by_pixel(image: Pixels, padding: int, corner: Corner) -> Pixels:
    height, width, _ = image.shape
    output = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            from_row = row + corner.top - padding
            across = width - 1 - column if corner.mirrored else column
            from_column = across + corner.left - padding
            if 0 <= from_row < height and 0 <= from_column < width:
                output[row, column] = image[from_row, from_column]
    return output


def sample_corner(augmentation: Augmentation, sample: int, seed: int, epoch: int) -> Corner:
    """The random numbers of one sample, drawn one by one."""
    stream, span = key(seed, "augment", epoch), 2 * augmentation.padding + 1
    top, left = int(integers(stream, span, sample, 0)), int(integers(stream, span, sample, 1))
    return Corner(top, left, augmentation.flip and int(integers(stream, 2, sample, 2)) == 1)


def some_pixels(count: int, height: int = 6, width: int = 6) -> Pixels:
    return np.random.default_rng(count).integers(1, 256, (count, height, width, 3), np.uint8)


augmentations = st.builds(Augmentation, padding=st.integers(0, 5), flip=st.booleans())


@settings(deadline=None)  # other processes may slow this one down
@given(augmentations, st.lists(st.integers(0, 2**40), min_size=1, max_size=5), st.integers(0, 9))
def test_a_batch_equals_its_single_images(
    augmentation: Augmentation, samples: list[int], epoch: int
) -> None:
    pixels = some_pixels(len(samples))
    output = augmentation(pixels, np.array(samples), seed=4, epoch=epoch)
    expected = [
        crop_pixel_by_pixel(
            image, augmentation.padding, sample_corner(augmentation, sample, 4, epoch)
        )
        for image, sample in zip(pixels, samples, strict=True)
    ]

    assert np.array_equal(output, expected)
    assert output.dtype == np.uint8


def test_images_need_not_be_square() -> None:
    pixels = some_pixels(2, height=4, width=7)
    tops, lefts, mirrored = np.array([0, 3]), np.array([4, 1]), np.array([True, False])
    output = crop_and_flip(pixels, 2, tops, lefts, mirrored)

    assert np.array_equal(output[0], crop_pixel_by_pixel(pixels[0], 2, Corner(0, 4, True)))
    assert np.array_equal(output[1], crop_pixel_by_pixel(pixels[1], 2, Corner(3, 1, False)))


@settings(deadline=None)  # other processes may slow this one down
@given(st.permutations(list(range(12))), st.integers(1, 12))
def test_order_and_chunks_of_the_ids_change_nothing(order: list[int], chunk: int) -> None:
    pixels, ids = some_pixels(12), np.arange(100, 112)
    full = PAD_CROP_FLIP(pixels, ids, seed=1, epoch=2)
    output = np.empty_like(full)
    for start in range(0, 12, chunk):
        part = np.array(order[start : start + chunk])
        output[part] = PAD_CROP_FLIP(pixels[part], ids[part], seed=1, epoch=2)

    assert np.array_equal(output, full)


def test_epochs_seeds_and_samples_are_augmented_differently() -> None:
    pixels = np.repeat(some_pixels(1, 16, 16), 64, axis=0)
    ids = np.arange(64)
    output = PAD_CROP_FLIP(pixels, ids, seed=0, epoch=0)

    # There are 162 crops and flips, so 5 equal pairs among 64 are very unlikely.
    for other in (
        PAD_CROP_FLIP(pixels, ids, seed=0, epoch=1),
        PAD_CROP_FLIP(pixels, ids, seed=1, epoch=0),
        PAD_CROP_FLIP(pixels, ids + 64, seed=0, epoch=0),
    ):
        assert sum(np.array_equal(a, b) for a, b in zip(output, other, strict=True)) < 5


def find_corners(ids: Ids, padding: int) -> tuple[Ids, Ids, Ids]:
    """Find corner and flip of each crop, from images whose pixels are their coordinates."""
    size = 4 * padding  # so that the middle pixel is in every crop
    image = np.zeros((size, size, 3), np.uint8)
    image[..., 0], image[..., 1] = np.indices((size, size)) + 1
    pixels = np.broadcast_to(image, (len(ids), size, size, 3))
    output = Augmentation(padding, flip=True)(pixels, ids, seed=0, epoch=0).astype(np.int64)
    middle = output[:, size // 2, size // 2 : size // 2 + 2]
    mirrored = middle[:, 0, 1] > middle[:, 1, 1]
    across = np.where(mirrored, size - 1 - size // 2, size // 2)
    return (
        middle[:, 0, 0] - 1 - size // 2 + padding,
        middle[:, 0, 1] - 1 - across + padding,
        mirrored,
    )


def test_crop_corners_are_uniform_and_half_are_flipped() -> None:
    count, padding = 20_000, 2
    top, left, mirrored = find_corners(np.arange(count), padding)
    cells = np.bincount((top * 5 + left) * 2 + mirrored, minlength=50)
    expected = count / 50
    noise = np.sqrt(expected)

    assert (top.min(), top.max(), left.min(), left.max()) == (0, 4, 0, 4)
    assert np.all(np.abs(cells - expected) < 5 * noise)
    assert abs(mirrored.mean() - 0.5) < 5 * 0.5 / np.sqrt(count)


def test_the_border_is_black_and_as_wide_as_the_shift() -> None:
    white = np.full((1, 8, 8, 3), 255, np.uint8)
    output = crop_and_flip(white, 3, np.array([0]), np.array([5]), np.array([False]))[0]
    inside = np.zeros((8, 8), bool)
    inside[3:, :6] = True  # shifted down by 3, and left by 2

    assert np.all(output[inside] == 255)
    assert np.all(output[~inside] == 0)


def test_without_padding_images_are_only_flipped() -> None:
    pixels, ids = some_pixels(40), np.arange(40)
    output = Augmentation(flip=True)(pixels, ids, seed=0, epoch=0)
    same = [np.array_equal(a, b) for a, b in zip(output, pixels, strict=True)]
    mirrored = [np.array_equal(a, b[:, ::-1]) for a, b in zip(output, pixels, strict=True)]

    assert all(a != b for a, b in zip(same, mirrored, strict=True))
    assert 5 < sum(mirrored) < 35


def test_no_augmentation_changes_no_pixel() -> None:
    pixels = some_pixels(5)

    assert np.array_equal(NO_AUGMENTATION(pixels, np.arange(5), seed=0, epoch=3), pixels)


def test_the_input_pixels_are_not_modified() -> None:
    pixels = some_pixels(5)
    before = pixels.copy()
    PAD_CROP_FLIP(pixels, np.arange(5), seed=0, epoch=0)[:] = 0

    assert np.array_equal(pixels, before)
