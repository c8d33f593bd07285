"""Resizing of windows: compared with Pillow, exact flips, independent of threads."""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from support.generated_images import picture

from convoy.data.images.crop import Window
from convoy.data.images.resize import (
    MAX_REUSED_BYTES,
    ThreadBuffer,
    crop_window,
    resize_antialiased,
    resize_window,
)
from convoy.data.source import Ids, Pixels

PIXELS = picture(150, 200)
WINDOWS = [
    Window(0, 0, 200, 150),
    Window(20, 30, 90, 70),
    Window(150, 100, 50, 50),
    Window(7, 0, 3, 150),
    Window(199, 149, 1, 1),
    Window(0, 50, 200, 1),
]


def resize(pixels: Pixels, window: Window, size: int, mirrored: bool = False) -> Pixels:
    out = np.full((size, size, 3), 99, np.uint8)
    resize_window(pixels, window, mirrored, out)
    return out


def antialias(pixels: Pixels, height: int, width: int) -> Pixels:
    out = np.full((height, width, 3), 99, np.uint8)
    resize_antialiased(pixels, out)
    return out


def resize_with_pillow(pixels: Pixels, height: int, width: int) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def difference(a: Pixels, b: Pixels) -> npt.NDArray[np.int64]:
    return np.abs(a.astype(np.int64) - b)


def bilinear(pixels: Pixels, size: int) -> npt.NDArray[np.float64]:
    """Bilinear interpolation by definition: each pixel from the four around its center."""

    def neighbors(length: int) -> tuple[Ids, Ids, npt.NDArray[np.float64]]:
        position = np.clip((np.arange(size) + 0.5) * length / size - 0.5, 0, length - 1)
        first = np.floor(position).astype(np.int64)
        return first, np.minimum(first + 1, length - 1), position - first

    above, below, row_weights = neighbors(pixels.shape[0])
    left, right, column_weights = neighbors(pixels.shape[1])
    row_weights, column_weights = row_weights[:, None, None], column_weights[None, :, None]
    values = pixels.astype(np.float64)
    upper = values[above][:, left] * (1 - column_weights) + values[above][:, right] * column_weights
    lower = values[below][:, left] * (1 - column_weights) + values[below][:, right] * column_weights
    return upper * (1 - row_weights) + lower * row_weights


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("size", [76, 112, 224])
def test_a_small_reduction_is_bilinear(window: Window, size: int) -> None:
    expected = bilinear(crop_window(PIXELS, window), size)

    assert np.abs(resize(PIXELS, window, size) - expected).max() <= 1


@pytest.mark.parametrize("size", [16, 50, 75])
def test_a_large_reduction_is_antialiased(size: int) -> None:
    full = Window(0, 0, 200, 150)

    assert np.array_equal(resize(PIXELS, full, size), antialias(PIXELS, size, size))
    assert not np.array_equal(resize(PIXELS, full, 76), antialias(PIXELS, 76, 76))


@pytest.mark.parametrize("sides", [(1, 1), (8, 8), (30, 40), (56, 99), (300, 300), (256, 341)])
@pytest.mark.parametrize("window", WINDOWS)
def test_antialiased_pixels_match_pillow(window: Window, sides: tuple[int, int]) -> None:
    inside = crop_window(PIXELS, window)

    assert difference(antialias(inside, *sides), resize_with_pillow(inside, *sides)).max() <= 1


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("size", [1, 5, 64, 224])
def test_a_flipped_window_is_an_exact_mirror_image(window: Window, size: int) -> None:
    assert np.array_equal(
        resize(PIXELS, window, size, mirrored=True), resize(PIXELS, window, size)[:, ::-1]
    )


def test_a_window_of_the_output_size_is_copied() -> None:
    assert np.array_equal(resize(PIXELS, Window(5, 6, 64, 64), 64), PIXELS[6:70, 5:69])


def test_a_fractional_window_is_rounded_to_pixels() -> None:
    inside = crop_window(PIXELS, Window(4.6, 6.4, 64.2, 63.8))  # ends at 68.8 and 70.2

    assert np.array_equal(inside, PIXELS[6:70, 5:69])


@pytest.mark.parametrize("window", [Window(199.8, 149.9, 0.1, 0.1), Window(0.1, 0.2, 0.2, 0.2)])
def test_a_window_smaller_than_a_pixel_is_one_pixel(window: Window) -> None:
    corner = PIXELS[-1, -1] if window.left > 1 else PIXELS[0, 0]

    assert (resize(PIXELS, window, 4) == corner).all()


@pytest.mark.parametrize("size", [21, 170])
def test_only_one_image_of_the_batch_is_written(size: int) -> None:
    batch = np.zeros((3, size, size, 3), np.uint8)
    resize_window(PIXELS, WINDOWS[1], True, batch[1])

    assert np.array_equal(batch[1], resize(PIXELS, WINDOWS[1], size, mirrored=True))
    assert batch[0].max() == batch[2].max() == 0


def test_concurrent_threads_do_not_interfere() -> None:
    jobs = [(picture(90, 120, seed), WINDOWS[seed % 3], 30 + seed, True) for seed in range(40)]
    sequential = [resize(*job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        concurrent = list(pool.map(lambda job: resize(*job), jobs * 4))

    assert all(np.array_equal(a, b) for a, b in zip(sequential * 4, concurrent, strict=True))


def test_the_number_of_torch_threads_does_not_change_pixels() -> None:
    single = [antialias(PIXELS, size, size) for size in (30, 224)]
    torch.set_num_threads(3)
    multiple = [antialias(PIXELS, size, size) for size in (30, 224)]
    torch.set_num_threads(1)

    assert all(np.array_equal(a, b) for a, b in zip(single, multiple, strict=True))


@pytest.mark.processes
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="without vector instructions, torch resizes bytes with a kernel that starts threads",
)
def test_resizing_starts_no_threads() -> None:
    script = """
        from threading import Thread
        import numpy as np, psutil, torch
        from convoy.data.images.resize import resize_antialiased, resize_window
        from convoy.data.images.crop import Window

        torch.set_num_threads(4)
        pixels, out = np.zeros((800, 900, 3), np.uint8), np.empty((380, 380, 3), np.uint8)
        counts = []

        def work():
            counts.append(psutil.Process().num_threads())
            resize_window(pixels, Window(10, 20, 700, 600), True, out)
            resize_antialiased(pixels[20:600, 10:700], out)
            counts.append(psutil.Process().num_threads())

        thread = Thread(target=work)
        thread.start()
        thread.join()
        print(counts[1] - counts[0])
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=True,
        capture_output=True,
        text=True,
    )

    assert result.stdout.strip() == "0"


def test_the_buffer_is_reused() -> None:
    buffer = ThreadBuffer()
    first = buffer(1000)

    assert len(first) == 1000
    assert np.shares_memory(first, buffer(1000))
    assert np.shares_memory(first, buffer(10))


def test_the_buffer_grows_and_never_shrinks() -> None:
    buffer = ThreadBuffer()
    buffer(10)
    large = buffer(5000)

    assert len(large) == 5000
    assert np.shares_memory(large, buffer(10))


def test_very_large_buffers_are_not_reused() -> None:
    buffer = ThreadBuffer()
    buffer(MAX_REUSED_BYTES)
    huge = buffer(MAX_REUSED_BYTES + 1)

    assert len(huge) == MAX_REUSED_BYTES + 1
    assert not np.shares_memory(huge, buffer(10))


def test_every_thread_has_a_separate_buffer() -> None:
    buffer = ThreadBuffer()
    first, others = buffer(100), []
    thread = Thread(target=lambda: others.append(buffer(100)))
    thread.start()
    thread.join()

    assert not np.shares_memory(first, others[0])
