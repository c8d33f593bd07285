"""Random crop windows: compared with per-image reference rules and expected distributions."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reference_crops import Draws, pytorch_window, tensorflow_window

from convoy.data.images.crop import Window, center_crop, center_rule, training_windows
from convoy.data.records.record import NO_BOXES, Boxes

RULES = ("pytorch", "tensorflow")
REFERENCE = {"pytorch": pytorch_window, "tensorflow": tensorflow_window}
F64 = npt.NDArray[np.float64]

SAMPLES = 100_000
# The distance between an empirical and the expected distribution function exceeds this once in a
# million runs (Dvoretzky–Kiefer–Wolfowitz). Hoeffding's bound for a single frequency is the same.
NOISE = np.sqrt(np.log(2 / 1e-6) / (2 * SAMPLES))
SIDE = 10_000  # large, so that rounding to pixels is negligible


def box_lists() -> st.SearchStrategy[Boxes]:
    side = st.tuples(st.integers(0, 15), st.integers(1, 16)).filter(lambda ends: ends[0] < ends[1])
    box = st.tuples(side, side).map(
        lambda sides: (sides[0][0], sides[1][0], sides[0][1], sides[1][1])
    )
    return st.lists(box, max_size=3).map(
        lambda boxes: np.array(boxes, np.float32).reshape(-1, 4) / np.float32(16)
    )


@settings(deadline=None)  # other processes may slow this one down
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60), box_lists()), min_size=1),
    st.sampled_from(RULES),
    st.integers(0, 9),
)
def test_a_batch_has_the_windows_of_its_single_images(
    images: list[tuple[int, int, Boxes]], rule: str, epoch: int
) -> None:
    ids = np.arange(len(images)) * 7 + 3
    sizes = np.array([image[:2] for image in images])
    windows, mirrored = training_windows(sizes, ids, 5, epoch, rule, [image[2] for image in images])
    draws = [Draws(sample, 5, epoch) for sample in ids.tolist()]

    assert windows.tolist() == [
        list(REFERENCE[rule](draw, *image)) for draw, image in zip(draws, images, strict=True)
    ]
    assert mirrored.tolist() == [draw.mirrored for draw in draws]


@pytest.mark.parametrize("rule", RULES)
def test_no_boxes_and_empty_lists_of_boxes_give_the_same_windows(rule: str) -> None:
    sizes, ids = np.array([[30, 50], [20, 90]] * 20), np.arange(40)
    without, _ = training_windows(sizes, ids, 0, 0, rule)
    empty, _ = training_windows(sizes, ids, 0, 0, rule, [NO_BOXES] * 40)

    assert np.array_equal(without, empty)


@pytest.mark.parametrize("rule", RULES)
def test_order_and_chunks_of_the_ids_change_nothing(rule: str) -> None:
    rng = np.random.default_rng(0)
    sizes, ids = rng.integers(1, 400, (60, 2)), np.arange(60) + 1000
    boxes = [np.array([[0.2, 0.3, 0.5, 0.9]], np.float32), NO_BOXES] * 30
    full, mirrored = training_windows(sizes, ids, 1, 2, rule, boxes)
    for part in np.array_split(rng.permutation(60), 7):
        chunk = training_windows(sizes[part], ids[part], 1, 2, rule, [boxes[i] for i in part])

        assert np.array_equal(chunk[0], full[part])
        assert np.array_equal(chunk[1], mirrored[part])


def test_epochs_seeds_and_samples_have_different_windows() -> None:
    sizes, ids = np.full((100, 2), 400), np.arange(100)
    first, _ = training_windows(sizes, ids, 0, 0)
    for other in (
        training_windows(sizes, ids, 0, 1)[0],
        training_windows(sizes, ids, 1, 0)[0],
        training_windows(sizes, ids + 100, 0, 0)[0],
    ):
        assert (first == other).all(axis=1).sum() <= 1


def squares(rule: str) -> tuple[F64, npt.NDArray[np.bool_]]:
    """Windows of large square images, as fractions of the side."""
    sizes, ids = np.full((SAMPLES, 2), SIDE), np.arange(SAMPLES)
    windows, mirrored = training_windows(sizes, ids, 0, 0, rule)
    return windows / SIDE, mirrored


def max_deviation(values: F64, cdf: Callable[[F64], F64]) -> float:
    """The largest distance between the empirical and the expected distribution function."""
    ordered = np.sort(values)
    expected = cdf(ordered)
    shares = np.arange(len(values) + 1) / len(values)
    return float(max(np.max(expected - shares[:-1]), np.max(shares[1:] - expected)))


def cdf_from_density(
    density: Callable[[F64], F64], low: float, high: float
) -> Callable[[F64], F64]:
    """The distribution function of a density that need not be normalized."""
    grid = np.linspace(low, high, 20_001)
    middles = (grid[1:] + grid[:-1]) / 2
    below = np.concatenate([[0.0], np.cumsum(density(middles))])
    return lambda values: np.interp(values, grid, below / below[-1])


def uniform_cdf(values: F64) -> F64:
    return np.clip(values, 0.0, 1.0)


def test_areas_are_uniform_among_the_shapes_that_fit() -> None:
    windows, _ = squares("pytorch")
    areas = windows[:, 2] * windows[:, 3]
    # A window of area a fits into a unit square if the absolute log of its ratio is at most -log a.
    expected = cdf_from_density(lambda a: np.minimum(1.0, -np.log(a) / np.log(4 / 3)), 0.08, 1.0)

    assert max_deviation(areas, expected) < NOISE + 2 / SIDE
    assert areas.min() > 0.08 - 2 / SIDE


def test_ratios_are_log_uniform_among_the_shapes_that_fit() -> None:
    windows, _ = squares("pytorch")
    logs = np.log(windows[:, 2] / windows[:, 3])
    expected = cdf_from_density(lambda t: np.exp(-np.abs(t)) - 0.08, -np.log(4 / 3), np.log(4 / 3))

    assert max_deviation(logs, expected) < NOISE + 20 / SIDE


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("axis", [0, 1])
def test_positions_are_uniform_and_independent_of_the_shape(rule: str, axis: int) -> None:
    windows, _ = squares(rule)
    room = 1 - windows[:, 2 + axis] + 1 / SIDE
    share = (windows[:, axis] + 0.5 / SIDE) / room
    movable = room > 0.1  # with less room, rounding to pixels would matter
    bound = NOISE * np.sqrt(SAMPLES / movable.sum()) + 10 / SIDE

    assert max_deviation(share[movable], uniform_cdf) < bound
    assert (
        max_deviation(share[movable & (room > 0.5)], uniform_cdf)
        < NOISE * np.sqrt(SAMPLES / (movable & (room > 0.5)).sum()) + 10 / SIDE
    )


@pytest.mark.parametrize("rule", RULES)
def test_half_of_the_images_are_flipped_independently_of_their_window(rule: str) -> None:
    windows, mirrored = squares(rule)
    left = windows[:, 0] < np.median(windows[:, 0])

    assert abs(mirrored.mean() - 0.5) < NOISE
    assert abs((mirrored == left).mean() - 0.5) < NOISE


def min_height(ratio: F64) -> F64:
    """The smallest height of a window that covers a tenth of a unit square."""
    return np.sqrt(0.1 / ratio)


def max_height(ratio: F64) -> F64:
    return np.minimum(1.0, 1 / ratio)


def test_heights_are_uniform_for_every_ratio_with_the_tensorflow_rule() -> None:
    windows, _ = squares("tensorflow")
    width, height = windows[:, 2], windows[:, 3]
    ratio = width / height
    share = (height - min_height(ratio)) / (max_height(ratio) - min_height(ratio))

    assert max_deviation(share, uniform_cdf) < NOISE + 10 / SIDE
    assert (width * height).min() > 0.1 - 2 / SIDE


def test_ratios_are_uniform_with_the_tensorflow_rule_among_visible_windows() -> None:
    windows, _ = squares("tensorflow")
    ratio = windows[:, 2] / windows[:, 3]

    def density(r: F64) -> F64:
        return (max_height(r) - min_height(r)) / (max_height(r) - np.sqrt(0.05 / r))

    assert max_deviation(ratio, cdf_from_density(density, 0.75, 1.33)) < NOISE + 20 / SIDE


def test_a_narrow_image_gives_its_center_at_the_nearest_ratio() -> None:
    sizes = np.array([[100, 5000], [5000, 100], [100, 5000], [1, 10_000], [1, 1]])
    windows, _ = training_windows(sizes, np.arange(5), 0, 0)

    assert windows.tolist() == [
        [2433, 0, 133, 100],
        [0, 2433, 100, 133],
        [2433, 0, 133, 100],
        [4999, 0, 1, 1],
        [0, 0, 1, 1],
    ]


def test_without_a_fitting_window_the_tensorflow_rule_uses_the_full_image() -> None:
    sizes = np.array([[100, 5000], [5000, 100]])
    windows, _ = training_windows(sizes, np.arange(2), 0, 0, "tensorflow")

    assert windows.tolist() == [[0, 0, 5000, 100], [0, 0, 100, 5000]]


def overlaps(windows: npt.NDArray[np.int64], box: Boxes) -> F64:
    """The number of pixels that windows of 400 × 300 images share with one box."""
    x1, y1, x2, y2 = box.astype(np.float64)[0] * (400, 300, 400, 300)
    left, top, width, height = windows.T
    across = np.minimum(left + width, x2) - np.maximum(left, x1)
    down = np.minimum(top + height, y2) - np.maximum(top, y1)
    return np.clip(across, 0, None) * np.clip(down, 0, None)


BOX = np.array([[0.55, 0.1, 0.95, 0.5]], np.float32)  # not symmetric in x and y


def test_a_tenth_of_every_window_shows_the_object() -> None:
    sizes, ids = np.tile([300, 400], (1000, 1)), np.arange(1000)
    windows, _ = training_windows(sizes, ids, 0, 0, "pytorch", [BOX] * 1000)
    free, _ = training_windows(sizes, ids, 0, 0)
    areas = windows[:, 2] * windows[:, 3]

    assert (overlaps(windows, BOX) >= 0.1 * areas).all()
    assert (overlaps(free, BOX) < 0.1 * free[:, 2] * free[:, 3]).sum() > 200


def test_every_window_shows_a_tenth_of_the_object_with_the_tensorflow_rule() -> None:
    sizes, ids = np.tile([300, 400], (1000, 1)), np.arange(1000)
    windows, _ = training_windows(sizes, ids, 0, 0, "tensorflow", [BOX] * 1000)
    free, _ = training_windows(sizes, ids, 0, 0, "tensorflow")
    area = 0.4 * 400 * 0.4 * 300

    assert (overlaps(windows, BOX) >= 0.1 * area).all()
    assert (overlaps(free, BOX) < 0.1 * area).sum() > 100


def test_after_nine_windows_without_the_object_the_last_is_used() -> None:
    speck = np.array(
        [[0.5, 0.5, 0.501, 0.501]], np.float32
    )  # too small to fill a tenth of any window
    window, _ = training_windows(np.array([[300, 400]]), np.array([8]), 0, 0, boxes=[speck])

    assert window.tolist() == [list(pytorch_window(Draws(8, 0, 0), 300, 400, speck))]
    assert (
        window.tolist() != training_windows(np.array([[300, 400]]), np.array([8]), 0, 0)[0].tolist()
    )


@pytest.mark.parametrize("rule", RULES)
def test_boxes_without_an_area_are_ignored(rule: str) -> None:
    sizes, ids = np.full((50, 2), 100), np.arange(50)
    useless = np.array([[0.5, 0.1, 0.5, 0.9], [0.9, 0.9, 0.1, 0.1], [np.nan] * 4], np.float32)
    windows, _ = training_windows(sizes, ids, 0, 0, rule, [useless] * 50)

    assert np.array_equal(windows, training_windows(sizes, ids, 0, 0, rule)[0])


def test_a_batch_may_be_empty() -> None:
    no_ids = np.empty(0, np.int64)
    for rule in RULES:
        windows, mirrored = training_windows(np.empty((0, 2), np.int64), no_ids, 0, 0, rule, [])

        assert (windows.shape, mirrored.shape) == ((0, 4), (0,))


@pytest.mark.parametrize(
    ("sides", "size", "expected"),
    [
        ((375, 500), 224, (256, 341, 16, 58)),
        ((500, 375), 224, (341, 256, 58, 16)),
        ((300, 300), 224, (256, 256, 16, 16)),
        ((100, 101), 224, (256, 258, 16, 17)),
        ((480, 640), 380, (434, 578, 27, 99)),
        ((64, 64), 32, (36, 36, 2, 2)),
    ],
)
def test_the_center_is_cropped_after_the_shorter_side_is_resized(
    sides: tuple[int, int], size: int, expected: tuple[int, int, int, int]
) -> None:
    found = center_crop(*sides, size)

    assert found == (Window(0, 0, sides[1], sides[0]), *expected)


def test_the_center_is_rounded_as_in_torchvision() -> None:
    """transforms.CenterCrop computes `int(round((image_height - crop_height) / 2.0))`."""
    for long_side in range(256, 700):
        plan = center_crop(256, long_side, 224)
        torchvision = round((long_side - 224) / 2.0)

        assert (plan.top, plan.left) == (16, torchvision)
        assert center_crop(long_side, 256, 224).top == torchvision


def test_the_tensorflow_rule_rounds_the_center_down() -> None:
    for long_side in range(256, 300):
        assert center_crop(256, long_side, 224, "center-floor").left == (long_side - 224) // 2
    assert (center_rule("pytorch"), center_rule("tensorflow")) == ("center", "center-floor")


def test_a_very_long_image_is_cropped_around_its_center() -> None:
    found = center_crop(10, 20_000, 224)

    assert found.source_window == Window(9_980, 0, 40, 10)
    assert (found.height, found.width, found.top, found.left) == (256, 1024, 16, 400)
