"""Photos for training and validation; bad ones end the run or are replaced."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from support.photo_files import damage, photo_paths, write_folder

from convoy.data.images.crop import Window, training_windows
from convoy.data.images.decode import read_header
from convoy.data.images.resize import load_training_photo, load_validation_photo
from convoy.data.records.folder import open_folder
from convoy.data.records.ledger import BadRecordError, Ledger
from convoy.data.source import Ids, Pixels, View
from convoy.data.sources.photo_readers import PhotoOptions, make_reader
from convoy.data.sources.photos import PhotoSource, PhotoView
from convoy.errors import DataError

SIZE = 32
EVERY = np.arange(12)


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


def seen(view: View, ids: Ids = EVERY, epoch: int = 0) -> Pixels:
    out = np.zeros((len(ids), view.size, view.size, 3), np.uint8)
    assert view(ids, epoch, out) == ()
    return out


def seen_with_gaps(view: View, ids: Ids = EVERY) -> tuple[Pixels, tuple[int, ...]]:
    out = np.zeros((len(ids), view.size, view.size, 3), np.uint8)
    unread = view(ids, 0, out)
    return out, unread


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos")


@pytest.mark.parametrize("rule", ["pytorch", "tensorflow"])
def test_each_training_photo_is_a_random_window(root: Path, rule: str) -> None:
    output = seen(training_view(open_photos(root), seed=3, rule=rule), epoch=2)
    for number, path in enumerate(photo_paths(root, "train")):
        encoded = path.read_bytes()
        header = read_header(encoded)
        sizes, ids = np.array([[header.height, header.width]]), np.array([number])
        windows, mirrored = training_windows(sizes, ids, 3, 2, rule)
        alone = np.empty((SIZE, SIZE, 3), np.uint8)
        window = Window(*windows[0].tolist())
        load_training_photo(encoded, header, window, bool(mirrored[0]), alone)

        assert np.array_equal(output[number], alone)


def test_validation_uses_the_center_in_every_epoch(root: Path) -> None:
    view = validation_view(open_photos(root, "validation"))
    output = seen(view, np.arange(5))
    alone = np.empty((SIZE, SIZE, 3), np.uint8)
    for number, path in enumerate(photo_paths(root, "validation")):
        load_validation_photo(path.read_bytes(), SIZE, alone)

        assert np.array_equal(output[number], alone)
    assert np.array_equal(output, seen(view, np.arange(5), epoch=7))


def test_neither_the_batch_nor_its_order_changes_a_photo(root: Path) -> None:
    view = training_view(open_photos(root), seed=1)
    full = seen(view)
    turned = seen(view, EVERY[::-1].copy())
    alone = np.concatenate([seen(view, EVERY[place : place + 1]) for place in range(12)])

    assert np.array_equal(full, turned[::-1])
    assert np.array_equal(full, alone)


def test_epochs_and_seeds_have_different_windows(root: Path) -> None:
    photos = open_photos(root)
    first = seen(training_view(photos, seed=1))

    assert not np.array_equal(first, seen(training_view(photos, seed=1), epoch=1))
    assert not np.array_equal(first, seen(training_view(photos, seed=2)))


def test_boxes_change_the_windows_that_miss_them(tmp_path: Path) -> None:
    photos = open_photos(write_folder(tmp_path, train=60, boxes=True))
    with_boxes = seen(training_view(photos, seed=1, use_boxes=True), np.arange(60))
    without = seen(training_view(photos, seed=1), np.arange(60))
    same = [np.array_equal(item, other) for item, other in zip(with_boxes, without, strict=True)]

    assert 0 < sum(same) < 60


@pytest.mark.parametrize("make", [validation_view, training_view])
def test_a_damaged_photo_is_an_error_that_names_it(
    root: Path, make: Callable[..., PhotoView]
) -> None:
    path = photo_paths(root, "train")[5]
    damage(path)
    with pytest.raises(BadRecordError) as ended:
        seen(make(open_photos(root)))

    assert str(ended.value).startswith(f"{path}: damaged JPEG:")


@pytest.mark.parametrize("make", [validation_view, training_view])
def test_a_bad_photo_is_replaced_by_the_next_of_its_class(
    root: Path, make: Callable[..., PhotoView]
) -> None:
    """Twelve photos of three classes in folders: 0-3, 4-7, 8-11."""
    before = seen(make(open_photos(root)))
    damage(photo_paths(root, "train")[5])
    ledger = Ledger(10)
    photos = open_photos(root)
    after, unread = seen_with_gaps(make(photos, ledger=ledger))
    options = PhotoOptions(SIZE, 1, "pytorch" if make is training_view else None)
    stand_in = np.empty((SIZE, SIZE, 3), np.uint8)
    make_reader(photos.records, options).read_one(6, 5, 0, stand_in)  # cropped like photo 5

    assert unread == (5,)
    assert [place for place in range(12) if not np.array_equal(before[place], after[place])] == [5]
    assert np.array_equal(after[5], stand_in)
    assert [record.file for record in ledger.records] == [str(photo_paths(root, "train")[5])]


def test_the_replacement_does_not_depend_on_the_batch(root: Path) -> None:
    for place in (5, 6, 11):
        damage(photo_paths(root, "train")[place])
    view = training_view(open_photos(root), seed=1, ledger=Ledger(10))
    full, unread = seen_with_gaps(view)
    alone = [seen_with_gaps(view, EVERY[place : place + 1])[0][0] for place in range(12)]

    assert unread == (5, 6, 11)
    assert np.array_equal(full, np.stack(alone))


def test_a_class_with_only_bad_photos_is_an_error(root: Path) -> None:
    for path in photo_paths(root, "train")[4:8]:
        damage(path)
    with pytest.raises(DataError, match="all other records of its class class1"):
        seen_with_gaps(validation_view(open_photos(root), ledger=Ledger(10)))


def test_too_many_bad_photos_are_an_error_that_lists_them(root: Path) -> None:
    paths = photo_paths(root, "train")
    for place in (1, 5, 9):
        damage(paths[place])
    with pytest.raises(DataError) as ended:
        seen_with_gaps(training_view(open_photos(root), seed=1, ledger=Ledger(2)))
    first, *listed = str(ended.value).splitlines()

    assert first == "3 bad records, --max-bad-records allows 2:"
    assert [line.split(": ")[0].strip() for line in listed] == [str(paths[p]) for p in (1, 5, 9)]


def test_labels_do_not_read_photos(root: Path) -> None:
    for path in photo_paths(root, "train"):
        path.write_bytes(b"")

    assert open_photos(root).labels(EVERY).tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_stored_center_crops_are_not_cropped_again(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos")
    records = open_folder(root, "validation")
    stored = validation_view(PhotoSource(records, "validation", stored_size=33), 33)
    other = validation_view(PhotoSource(records, "validation", stored_size=20), 33)
    for number, path in enumerate(photo_paths(root, "validation")):
        pixels = simplejpeg.decode_jpeg(path.read_bytes())
        ids = np.array([number])
        if pixels.shape == (33, 33, 3):
            assert np.array_equal(seen(stored, ids)[0], pixels)
            assert not np.array_equal(seen(other, ids)[0], pixels)
        else:
            assert seen(stored, ids).shape == (1, 33, 33, 3)


def steps_of(view: View) -> list[str]:
    steps: list[str] = []
    view(np.arange(4), 0, np.zeros((4, SIZE, SIZE, 3), np.uint8), steps.append)
    return steps


def test_each_finished_step_is_reported(root: Path) -> None:
    photos = open_photos(root)
    opening, writing = ["read", "decode"] * 4, ["decode", "crop"] * 4

    assert steps_of(training_view(photos)) == [*opening, "crop", *writing]
    assert steps_of(validation_view(photos)) == ["read", "decode"] * 4


def test_a_replacement_is_reported_as_a_step(root: Path) -> None:
    damage(photo_paths(root, "train")[2])

    assert steps_of(training_view(open_photos(root), ledger=Ledger(10)))[-1] == "substitute"
