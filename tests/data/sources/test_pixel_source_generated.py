"""Random data of the host: repeatable, cheap, in range."""

import numpy as np
import pytest

from convoy.data.sources.pixel_source import Generated, PixelSource
from convoy.errors import ConfigError


def test_the_same_seed_makes_the_same_images() -> None:
    ids = np.array([5, 0, 63, 5])
    one, same = Generated(100, 32, 10, seed=1), Generated(100, 32, 10, seed=1)
    other = Generated(100, 32, 10, seed=2)

    assert np.array_equal(one.pixels(ids), same.pixels(ids))
    assert not np.array_equal(one.pixels(ids), other.pixels(ids))


def test_images_have_the_face_of_a_source() -> None:
    source: PixelSource = Generated(samples=7, image_size=20, classes=3, seed=0)
    pixels = source.pixels(np.arange(7))

    assert pixels.shape == (7, 20, 20, 3)
    assert pixels.dtype == np.uint8
    assert (len(source), source.image_size, len(source.class_names)) == (7, 20, 3)


def test_values_fill_0_to_254_and_their_moments_are_the_normalization() -> None:
    source = Generated(64, 64, 10, seed=0)
    pixels = source.pixels(np.arange(64))
    scaled = pixels.reshape(-1, 3) / 255.0

    assert (pixels.min(), pixels.max()) == (0, 254)
    assert np.allclose(scaled.mean(0), source.normalization.mean, atol=0.003)
    assert np.allclose(scaled.std(0), source.normalization.deviation, atol=0.003)


def test_labels_count_through_the_classes() -> None:
    source = Generated(samples=2_000_000, image_size=8, classes=1000, seed=0)

    assert source.labels(np.array([0, 999, 1000, 1_234_567])).tolist() == [0, 999, 0, 567]


def test_images_of_one_pool_differ_and_come_again() -> None:
    source = Generated(samples=10_000, image_size=8, classes=10, seed=0)
    pixels = source.pixels(np.arange(128))

    assert len({image.tobytes() for image in pixels[:64]}) == 64
    assert np.array_equal(pixels[:64], pixels[64:])


def test_a_changed_batch_leaves_the_source_as_it_was() -> None:
    source = Generated(samples=4, image_size=8, classes=2, seed=0)
    before = source.pixels(np.arange(4)).copy()
    source.pixels(np.arange(4))[:] = 0

    assert np.array_equal(source.pixels(np.arange(4)), before)


def test_many_large_images_take_a_small_pool() -> None:
    source = Generated(samples=10**12, image_size=1200, classes=1000, seed=0)

    assert source.pixels(np.array([10**12 - 1])).shape == (1, 1200, 1200, 3)
    assert source._pool.nbytes <= 2**24


@pytest.mark.parametrize(("samples", "size", "classes"), [(0, 8, 2), (4, 0, 2), (4, 8, -1)])
def test_nothing_to_make_is_refused(samples: int, size: int, classes: int) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Generated(samples, size, classes, seed=0)
