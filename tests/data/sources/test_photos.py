"""Photos for training and validation; a bad photo is an error or is replaced."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from support.photo_files import damage, photo_paths, write_folder

from convoy.config.schema import build_config
from convoy.data.images.crop import Window, training_windows
from convoy.data.images.decode import read_header
from convoy.data.images.resize import load_center_crop, load_training_photo
from convoy.data.preprocessing import ImageTransform, Preprocessing
from convoy.data.records.folder import open_folder
from convoy.data.records.ledger import BadRecordError, Ledger
from convoy.data.source import Ids, Pixels, View
from convoy.data.sources.photo_readers import PhotoOptions, make_reader
from convoy.data.sources.photos import PhotoSource, PhotoView
from convoy.errors import DataError

SIZE = 32
ALL_IDS = np.arange(12)


def training_view(
    photos: PhotoSource,
    seed: int = 1,
    rule: str = "pytorch",
    use_boxes: bool = False,
    ledger: Ledger | None = None,
) -> PhotoView:
    options = PhotoOptions(SIZE, seed, rule, use_boxes)
    return PhotoView(photos, SIZE, make_reader(photos.records, options), ledger)


def validation_view(
    photos: PhotoSource, size: int = SIZE, ledger: Ledger | None = None
) -> PhotoView:
    reader = make_reader(photos.records, PhotoOptions(size), photos.stored_size)
    return PhotoView(photos, size, reader, ledger)


def open_photos(root: Path, split: str = "train") -> PhotoSource:
    return PhotoSource(open_folder(root, split), split)


def view_pixels(view: View, ids: Ids = ALL_IDS, epoch: int = 0) -> Pixels:
    out = np.zeros((len(ids), view.size, view.size, 3), np.uint8)
    assert view(ids, epoch, out) == ()
    return out


def view_and_skip(view: View, ids: Ids = ALL_IDS) -> tuple[Pixels, tuple[int, ...]]:
    out = np.zeros((len(ids), view.size, view.size, 3), np.uint8)
    unreadable = view(ids, 0, out)
    return out, unreadable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos")


@pytest.mark.parametrize("rule", ["pytorch", "tensorflow"])
def test_each_training_photo_is_a_random_window(root: Path, rule: str) -> None:
    output = view_pixels(training_view(open_photos(root), seed=3, rule=rule), epoch=2)
    for number, path in enumerate(photo_paths(root, "train")):
        encoded = path.read_bytes()
        header = read_header(encoded)
        sizes, ids = np.array([[header.height, header.width]]), np.array([number])
        windows, mirrored = training_windows(sizes, ids, 3, 2, rule)
        expected = np.empty((SIZE, SIZE, 3), np.uint8)
        window = Window(*windows[0].tolist())
        load_training_photo(encoded, header, window, bool(mirrored[0]), expected)

        assert np.array_equal(output[number], expected)


def test_validation_uses_the_center_in_every_epoch(root: Path) -> None:
    view = validation_view(open_photos(root, "validation"))
    output = view_pixels(view, np.arange(5))
    expected = np.empty((SIZE, SIZE, 3), np.uint8)
    for number, path in enumerate(photo_paths(root, "validation")):
        load_center_crop(path.read_bytes(), SIZE, expected)

        assert np.array_equal(output[number], expected)
    assert np.array_equal(output, view_pixels(view, np.arange(5), epoch=7))


@pytest.mark.parametrize(
    ("crop_rule", "center"), [("pytorch", "center"), ("tensorflow", "center-floor")]
)
def test_the_crop_rule_decides_how_the_center_is_rounded(
    root: Path, crop_rule: str, center: str
) -> None:
    """At 33 pixels, photo 3 is resized to 88 × 37, so its surplus of 55 is odd."""
    photos = open_photos(root, "validation")
    config = build_config({"data": "imagenet", "crop_rule": crop_rule}).data
    encoded = photo_paths(root, "validation")[3].read_bytes()
    expected = {}
    for rule in ("center", "center-floor"):
        expected[rule] = np.empty((33, 33, 3), np.uint8)
        load_center_crop(encoded, 33, expected[rule], rule)
    pixels = view_pixels(photos.validation_view(config, 33), np.array([3]))[0]
    preprocessing = Preprocessing.of(photos, config, 33)

    assert not np.array_equal(expected["center"], expected["center-floor"])
    assert np.array_equal(pixels, expected[center])
    assert preprocessing is not None and preprocessing.crop == center
    assert np.array_equal(ImageTransform(preprocessing).pixels(encoded), pixels)


def test_training_without_augmentation_rounds_the_center_down(root: Path) -> None:
    """So that new releases reproduce the weights of old runs."""
    photos = open_photos(root)
    config = build_config({"data": "imagenet", "augment": False}).data
    expected = np.empty((33, 33, 3), np.uint8)
    load_center_crop(photo_paths(root, "train")[5].read_bytes(), 33, expected, "center-floor")
    pixels = view_pixels(photos.training_view(config, 33), np.array([5]))

    assert np.array_equal(pixels[0], expected)


def test_neither_the_batch_nor_its_order_changes_a_photo(root: Path) -> None:
    view = training_view(open_photos(root), seed=1)
    full = view_pixels(view)
    reversed_batch = view_pixels(view, ALL_IDS[::-1].copy())
    single = np.concatenate([view_pixels(view, ALL_IDS[index : index + 1]) for index in range(12)])

    assert np.array_equal(full, reversed_batch[::-1])
    assert np.array_equal(full, single)


def test_epochs_and_seeds_have_different_windows(root: Path) -> None:
    photos = open_photos(root)
    first = view_pixels(training_view(photos, seed=1))

    assert not np.array_equal(first, view_pixels(training_view(photos, seed=1), epoch=1))
    assert not np.array_equal(first, view_pixels(training_view(photos, seed=2)))


def test_boxes_change_the_windows_that_miss_them(tmp_path: Path) -> None:
    photos = open_photos(write_folder(tmp_path, train=60, boxes=True))
    with_boxes = view_pixels(training_view(photos, seed=1, use_boxes=True), np.arange(60))
    without = view_pixels(training_view(photos, seed=1), np.arange(60))
    equal = [np.array_equal(a, b) for a, b in zip(with_boxes, without, strict=True)]

    assert 0 < sum(equal) < 60


@pytest.mark.parametrize("make", [validation_view, training_view])
def test_a_damaged_photo_is_an_error_that_names_it(
    root: Path, make: Callable[..., PhotoView]
) -> None:
    path = photo_paths(root, "train")[5]
    damage(path)
    with pytest.raises(BadRecordError) as caught:
        view_pixels(make(open_photos(root)))

    assert str(caught.value).startswith(f"{path}: damaged JPEG:")


@pytest.mark.parametrize("make", [validation_view, training_view])
def test_a_bad_photo_is_replaced_by_the_next_of_its_class(
    root: Path, make: Callable[..., PhotoView]
) -> None:
    """The photos of the three classes are 0-3, 4-7 and 8-11."""
    before = view_pixels(make(open_photos(root)))
    damage(photo_paths(root, "train")[5])
    ledger = Ledger(10)
    photos = open_photos(root)
    after, unreadable = view_and_skip(make(photos, ledger=ledger))
    options = PhotoOptions(SIZE, 1, "pytorch" if make is training_view else None)
    replacement = np.empty((SIZE, SIZE, 3), np.uint8)
    make_reader(photos.records, options).read_one(6, 5, 0, replacement)  # cropped like photo 5

    assert unreadable == (5,)
    assert [index for index in range(12) if not np.array_equal(before[index], after[index])] == [5]
    assert np.array_equal(after[5], replacement)
    assert [record.file for record in ledger.records] == [str(photo_paths(root, "train")[5])]


def test_the_replacement_does_not_depend_on_the_batch(root: Path) -> None:
    for index in (5, 6, 11):
        damage(photo_paths(root, "train")[index])
    view = training_view(open_photos(root), seed=1, ledger=Ledger(10))
    full, unreadable = view_and_skip(view)
    single = [view_and_skip(view, ALL_IDS[index : index + 1])[0][0] for index in range(12)]

    assert unreadable == (5, 6, 11)
    assert np.array_equal(full, np.stack(single))


def test_a_class_with_only_bad_photos_is_an_error(root: Path) -> None:
    for path in photo_paths(root, "train")[4:8]:
        damage(path)
    with pytest.raises(DataError, match="all other records of its class class1"):
        view_and_skip(validation_view(open_photos(root), ledger=Ledger(10)))


def test_too_many_bad_photos_are_an_error_that_lists_them(root: Path) -> None:
    paths = photo_paths(root, "train")
    for index in (1, 5, 9):
        damage(paths[index])
    with pytest.raises(DataError) as caught:
        view_and_skip(training_view(open_photos(root), seed=1, ledger=Ledger(2)))
    first, *listed = str(caught.value).splitlines()

    assert first == "3 bad records, --max-bad-records allows 2:"
    assert [line.split(": ")[0].strip() for line in listed] == [
        str(paths[index]) for index in (1, 5, 9)
    ]


def test_labels_do_not_read_photos(root: Path) -> None:
    for path in photo_paths(root, "train"):
        path.write_bytes(b"")

    assert open_photos(root).labels(ALL_IDS).tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_stored_center_crops_are_not_cropped_again(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos")
    records = open_folder(root, "validation")
    stored = validation_view(PhotoSource(records, "validation", stored_size=33), 33)
    other = validation_view(PhotoSource(records, "validation", stored_size=20), 33)
    for number, path in enumerate(photo_paths(root, "validation")):
        pixels = simplejpeg.decode_jpeg(path.read_bytes())
        ids = np.array([number])
        if pixels.shape == (33, 33, 3):
            assert np.array_equal(view_pixels(stored, ids)[0], pixels)
            assert not np.array_equal(view_pixels(other, ids)[0], pixels)
        else:
            assert view_pixels(stored, ids).shape == (1, 33, 33, 3)


def steps_of(view: View) -> list[str]:
    steps: list[str] = []
    view(np.arange(4), 0, np.zeros((4, SIZE, SIZE, 3), np.uint8), steps.append)
    return steps


def test_each_finished_step_is_reported(root: Path) -> None:
    photos = open_photos(root)
    read_steps, crop_steps = ["read", "decode"] * 4, ["decode", "crop"] * 4

    assert steps_of(training_view(photos)) == [*read_steps, "crop", *crop_steps]
    assert steps_of(validation_view(photos)) == ["read", "decode"] * 4


def test_a_replacement_is_reported_as_a_step(root: Path) -> None:
    damage(photo_paths(root, "train")[2])

    assert steps_of(training_view(open_photos(root), ledger=Ledger(10)))[-1] == "substitute"
