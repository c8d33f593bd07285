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


def fitted(pixels: Pixels, window: Window, size: int, mirrored: bool = False) -> Pixels:
    out = np.full((size, size, 3), 99, np.uint8)
    resize_window(pixels, window, mirrored, out)
    return out


def smoothed(pixels: Pixels, height: int, width: int) -> Pixels:
    out = np.full((height, width, 3), 99, np.uint8)
    resize_antialiased(pixels, out)
    return out


def by_pillow(pixels: Pixels, height: int, width: int) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def apart(a: Pixels, b: Pixels) -> npt.NDArray[np.int64]:
    return np.abs(a.astype(np.int64) - b)


def between(pixels: Pixels, size: int) -> npt.NDArray[np.float64]:
    """Bilinear by definition: each pixel from the four around its middle."""

    def neighbors(side: int) -> tuple[Ids, Ids, npt.NDArray[np.float64]]:
        place = np.clip((np.arange(size) + 0.5) * side / size - 0.5, 0, side - 1)
        first = np.floor(place).astype(np.int64)
        return first, np.minimum(first + 1, side - 1), place - first

    above, below, down = neighbors(pixels.shape[0])
    before, behind, across = neighbors(pixels.shape[1])
    down, across = down[:, None, None], across[None, :, None]
    values = pixels.astype(np.float64)
    upper = values[above][:, before] * (1 - across) + values[above][:, behind] * across
    lower = values[below][:, before] * (1 - across) + values[below][:, behind] * across
    return upper * (1 - down) + lower * down


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("size", [76, 112, 224])
def test_a_small_reduction_is_bilinear(window: Window, size: int) -> None:
    expected = between(crop_window(PIXELS, window), size)

    assert np.abs(fitted(PIXELS, window, size) - expected).max() <= 1


@pytest.mark.parametrize("size", [16, 50, 75])
def test_a_large_reduction_is_antialiased(size: int) -> None:
    full = Window(0, 0, 200, 150)

    assert np.array_equal(fitted(PIXELS, full, size), smoothed(PIXELS, size, size))
    assert not np.array_equal(fitted(PIXELS, full, 76), smoothed(PIXELS, 76, 76))


@pytest.mark.parametrize("sides", [(1, 1), (8, 8), (30, 40), (56, 99), (300, 300), (256, 341)])
@pytest.mark.parametrize("window", WINDOWS)
def test_antialiased_pixels_match_pillow(window: Window, sides: tuple[int, int]) -> None:
    inside = crop_window(PIXELS, window)

    assert apart(smoothed(inside, *sides), by_pillow(inside, *sides)).max() <= 1


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("size", [1, 5, 64, 224])
def test_a_flipped_window_is_an_exact_mirror_image(window: Window, size: int) -> None:
    assert np.array_equal(
        fitted(PIXELS, window, size, mirrored=True), fitted(PIXELS, window, size)[:, ::-1]
    )


def test_a_window_of_the_output_size_is_copied() -> None:
    assert np.array_equal(fitted(PIXELS, Window(5, 6, 64, 64), 64), PIXELS[6:70, 5:69])


def test_a_fractional_window_is_rounded_to_pixels() -> None:
    inside = crop_window(PIXELS, Window(4.6, 6.4, 64.2, 63.8))  # to 68.8 and 70.2

    assert np.array_equal(inside, PIXELS[6:70, 5:69])


@pytest.mark.parametrize("window", [Window(199.8, 149.9, 0.1, 0.1), Window(0.1, 0.2, 0.2, 0.2)])
def test_a_window_smaller_than_a_pixel_is_one_pixel(window: Window) -> None:
    corner = PIXELS[-1, -1] if window.left > 1 else PIXELS[0, 0]

    assert (fitted(PIXELS, window, 4) == corner).all()


@pytest.mark.parametrize("size", [21, 170])
def test_only_one_image_of_the_batch_is_written(size: int) -> None:
    batch = np.zeros((3, size, size, 3), np.uint8)
    resize_window(PIXELS, WINDOWS[1], True, batch[1])

    assert np.array_equal(batch[1], fitted(PIXELS, WINDOWS[1], size, mirrored=True))
    assert batch[0].max() == batch[2].max() == 0


def test_concurrent_threads_do_not_interfere() -> None:
    jobs = [(picture(90, 120, seed), WINDOWS[seed % 3], 30 + seed, True) for seed in range(40)]
    alone = [fitted(*job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda job: fitted(*job), jobs * 4))

    assert all(np.array_equal(a, b) for a, b in zip(alone * 4, together, strict=True))


def test_the_number_of_torch_threads_does_not_change_pixels() -> None:
    single = [smoothed(PIXELS, size, size) for size in (30, 224)]
    torch.set_num_threads(3)
    several = [smoothed(PIXELS, size, size) for size in (30, 224)]
    torch.set_num_threads(1)

    assert all(np.array_equal(a, b) for a, b in zip(single, several, strict=True))


@pytest.mark.processes
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="without vector instructions torch resizes bytes by a kernel that starts threads",
)
def test_resizing_starts_no_threads() -> None:
    counting = """
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
    message = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(counting)],
        check=True,
        capture_output=True,
        text=True,
    )

    assert message.stdout.strip() == "0"


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
    local, others = buffer(100), []
    thread = Thread(target=lambda: others.append(buffer(100)))
    thread.start()
    thread.join()

    assert not np.shares_memory(local, others[0])
