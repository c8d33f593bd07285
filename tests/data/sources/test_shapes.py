"""The built-in dataset: reproducible, balanced, scalable, and too hard for a linear model."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from convoy.data.sources.pixel_source import PixelSource
from convoy.data.sources.shapes import (
    OUTLINES,
    SceneRng,
    ShapesSource,
    distance_to_origin,
    occluder_coverage,
    pixel_grid,
    place_shape,
    shape_coverage,
)
from convoy.errors import ConfigError

# SHA-256 of the first ten images, 32 × 32, seed 0. A different value means that the data of past
# runs has changed. It holds wherever NumPy follows IEEE 754 in + − × ÷ √.
FIRST_TEN = "c6c43cb68b81edd9242ab8a782df2ed21af277c41603a35c1d2738b34a0bd147"


def test_images_and_labels_have_the_source_interface() -> None:
    source: PixelSource = ShapesSource(samples=30, image_size=32, seed=0)
    ids = np.arange(30)

    assert (len(source), source.image_size, len(source.class_names)) == (30, 32, 10)
    assert (source.pixels(ids).shape, source.pixels(ids).dtype) == ((30, 32, 32, 3), np.uint8)
    assert (source.labels(ids).shape, source.labels(ids).dtype) == ((30,), np.int64)


def test_class_names_are_unique() -> None:
    assert len(set(ShapesSource.class_names)) == len(ShapesSource.class_names) == 10


@pytest.mark.parametrize("start", [0, 1, 37, 990])
def test_every_range_of_ids_is_balanced_over_the_classes(start: int) -> None:
    labels = ShapesSource(1100, 32, 0).labels(np.arange(start, start + 100))

    assert np.bincount(labels).tolist() == [10] * 10


@pytest.mark.parametrize("size", [8, 32, 33, 224])
def test_any_size_works(size: int) -> None:
    pixels = ShapesSource(12, size, 0).pixels(np.arange(12))

    assert pixels.shape == (12, size, size, 3)
    assert all(image.std() > 10 for image in pixels)


def test_order_chunks_and_repetition_do_not_change_pixels() -> None:
    source = ShapesSource(200, 32, 3)
    ids = np.random.default_rng(0).permutation(200)
    full = source.pixels(np.arange(200))
    chunks = [source.pixels(chunk) for chunk in np.split(ids, [1, 2, 9, 80, 143])]

    assert np.array_equal(np.concatenate(chunks), full[ids])
    assert np.array_equal(source.pixels(np.array([7, 7, 3])), full[[7, 7, 3]])


def test_four_threads_get_the_same_pixels_as_one() -> None:
    source = ShapesSource(400, 32, 0)
    parts = np.split(np.arange(400), 16)
    with ThreadPoolExecutor(4) as threads:
        concurrent = list(threads.map(source.pixels, parts))

    assert np.array_equal(np.concatenate(concurrent), source.pixels(np.arange(400)))


def test_seeds_and_splits_differ_in_every_image() -> None:
    ids = np.arange(20)
    samples = [
        ShapesSource(20, 32, seed, split).pixels(ids)
        for seed in (0, 1)
        for split in ("train", "validation")
    ]

    assert len({image.tobytes() for images in samples for image in images}) == 80


def test_a_larger_source_starts_like_a_smaller_one() -> None:
    ids = np.arange(10)

    assert np.array_equal(
        ShapesSource(10, 32, 0).pixels(ids), ShapesSource(5000, 32, 0).pixels(ids)
    )


def test_no_ids_give_no_images() -> None:
    no_ids = np.arange(0)

    assert ShapesSource(10, 32, 0).pixels(no_ids).shape == (0, 32, 32, 3)


def test_a_larger_image_shows_the_same_scene() -> None:
    ids = np.arange(40)
    small = ShapesSource(40, 32, 0).pixels(ids).astype(np.float64)
    large = ShapesSource(40, 128, 0).pixels(ids).reshape(40, 32, 4, 32, 4, 3).mean((2, 4))

    assert np.abs(small - large).mean() < 6  # of 255; the difference is only pixel noise


def test_the_first_images_never_change() -> None:
    pixels = ShapesSource(10, 32, 0).pixels(np.arange(10))

    assert hashlib.sha256(pixels.tobytes()).hexdigest() == FIRST_TEN


def test_mean_and_deviation_match_the_normalization() -> None:
    source = ShapesSource(2000, 32, 0)
    scaled = source.pixels(np.arange(2000)).reshape(-1, 3) / 255.0

    assert np.allclose(scaled.mean(0), source.normalization.mean, atol=0.02)
    assert np.allclose(scaled.std(0), source.normalization.std, atol=0.02)


def test_most_of_every_shape_is_inside_the_image_and_not_hidden() -> None:
    ids = np.arange(1000)
    rng = SceneRng((0, "shapes", "train"), ids)
    grid = place_shape(rng, pixel_grid(32))
    coverage = shape_coverage(ids % 10, grid)
    hidden = coverage * occluder_coverage(rng, grid)
    areas = coverage.sum((1, 2))

    assert areas.min() > 60  # of 1024 pixels
    assert (hidden.sum((1, 2)) / areas).max() < 0.5
    assert (hidden.sum((1, 2)) / areas).mean() < 0.1


@pytest.mark.parametrize("name", OUTLINES)
def test_an_outline_fills_the_unit_circle_and_stays_inside(name: str) -> None:
    y, x = np.mgrid[-1.5:1.5:301j, -1.5:1.5:301j].astype(np.float32)
    inside = OUTLINES[name](x, y) < 0
    radius = distance_to_origin(x, y)[inside].max()

    assert 0.85 < radius < 1.1


@pytest.mark.parametrize("name", OUTLINES)
def test_an_outline_has_slope_one_at_its_edge(name: str) -> None:
    y, x = np.mgrid[-1.2:1.2:601j, -1.2:1.2:601j].astype(np.float32)
    distance = OUTLINES[name](x, y)
    step = y[1, 0] - y[0, 0]
    slope = np.hypot(*np.gradient(distance, step))[np.abs(distance) < step]

    assert abs(np.median(slope) - 1) < 0.01  # so that all borders are equally sharp


def test_a_linear_model_is_not_accurate() -> None:
    (images, labels), (unseen, expected) = (features("train", 3000), features("validation", 1000))
    kernel, targets = images @ images.T, np.eye(10, dtype=np.float32)[labels]
    scores = []
    for ridge in (1e2, 1e4):
        weights = images.T @ np.linalg.solve(kernel + ridge * np.eye(3000), targets)
        scores.append(((unseen @ weights).argmax(1) == expected).mean())

    assert max(scores) < 0.45


def features(split: str, samples: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Centered pixels as rows, and labels."""
    source = ShapesSource(samples, 32, 0, split)
    ids = np.arange(samples)
    rows = source.pixels(ids).reshape(samples, -1).astype(np.float32) / 255 - 0.477
    return rows, source.labels(ids)


def test_too_few_pixels_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 8 × 8 pixels, got 7; raise --image-size"):
        ShapesSource(10, 7, 0)
