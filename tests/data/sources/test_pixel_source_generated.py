"""Generated data: reproducible, in range, and small in memory."""

import numpy as np

from convoy.data.sources.pixel_source import GeneratedSource, PixelSource


def test_the_same_seed_makes_the_same_images() -> None:
    ids = np.array([5, 0, 63, 5])
    first, same = GeneratedSource(100, 32, 10, seed=1), GeneratedSource(100, 32, 10, seed=1)
    different = GeneratedSource(100, 32, 10, seed=2)

    assert np.array_equal(first.pixels(ids), same.pixels(ids))
    assert not np.array_equal(first.pixels(ids), different.pixels(ids))


def test_images_and_labels_have_the_source_interface() -> None:
    source: PixelSource = GeneratedSource(samples=7, image_size=20, classes=3, seed=0)
    pixels = source.pixels(np.arange(7))

    assert pixels.shape == (7, 20, 20, 3)
    assert pixels.dtype == np.uint8
    assert (len(source), source.image_size, len(source.class_names)) == (7, 20, 3)


def test_values_are_0_to_254_and_match_the_normalization() -> None:
    source = GeneratedSource(64, 64, 10, seed=0)
    pixels = source.pixels(np.arange(64))
    scaled = pixels.reshape(-1, 3) / 255.0

    assert (pixels.min(), pixels.max()) == (0, 254)
    assert np.allclose(scaled.mean(0), source.normalization.mean, atol=0.003)
    assert np.allclose(scaled.std(0), source.normalization.std, atol=0.003)


def test_labels_cycle_through_the_classes() -> None:
    source = GeneratedSource(samples=2_000_000, image_size=8, classes=1000, seed=0)

    assert source.labels(np.array([0, 999, 1000, 1_234_567])).tolist() == [0, 999, 0, 567]


def test_images_of_the_pool_are_different_and_repeat() -> None:
    source = GeneratedSource(samples=10_000, image_size=8, classes=10, seed=0)
    pixels = source.pixels(np.arange(128))

    assert len({image.tobytes() for image in pixels[:64]}) == 64
    assert np.array_equal(pixels[:64], pixels[64:])


def test_modifying_a_batch_does_not_change_the_source() -> None:
    source = GeneratedSource(samples=4, image_size=8, classes=2, seed=0)
    before = source.pixels(np.arange(4)).copy()
    source.pixels(np.arange(4))[:] = 0

    assert np.array_equal(source.pixels(np.arange(4)), before)


def test_many_large_images_take_a_small_pool() -> None:
    source = GeneratedSource(samples=10**12, image_size=1200, classes=1000, seed=0)

    assert source.pixels(np.array([10**12 - 1])).shape == (1, 1200, 1200, 3)
    assert source._pool.nbytes <= 2**24
