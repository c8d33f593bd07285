"""A view in small steps gives the same pixels, and names what it has done."""

from pathlib import Path

import numpy as np
import pytest
from photo_files import damage, photo_paths, write_folder

from convoy.data.augment import PAD_CROP_FLIP
from convoy.data.generated import Generated
from convoy.data.images.window import Rule
from convoy.data.photos import Photos, Tolerance, TrainingPhotos, ValidationPhotos
from convoy.data.records.folder import open_folder
from convoy.data.records.ledger import Ledger
from convoy.data.records.record import BadRecordError
from convoy.data.source import Ids, Pixels
from convoy.data.steps import walk
from convoy.data.view import Augmented, Plain, View

SOURCE = Generated(64, image_size=12, classes=3, seed=5)
IDS: Ids = np.array([9, 2, 11, 2], np.int64)


def walked(view: View, epoch: int) -> tuple[Pixels, list[str]]:
    out = np.zeros((len(IDS), view.size, view.size, 3), np.uint8)
    return out, list(walk(view, IDS, epoch, out))


def looked(view: View, epoch: int) -> Pixels:
    out = np.zeros((len(IDS), view.size, view.size, 3), np.uint8)
    view(IDS, epoch, out)
    return out


def test_pixels_in_memory_are_taken_and_augmented() -> None:
    view = Augmented(SOURCE, PAD_CROP_FLIP, seed=1)
    pixels, steps = walked(view, epoch=3)

    assert steps == ["take", "augment"]
    assert np.array_equal(pixels, looked(view, epoch=3))
    assert not np.array_equal(pixels, looked(view, epoch=4))


def test_a_view_that_nobody_has_taken_apart_is_one_step() -> None:
    pixels, steps = walked(Plain(SOURCE), epoch=0)

    assert steps == ["look"]
    assert np.array_equal(pixels, SOURCE.pixels(IDS))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path, train=12, boxes=True)


def photos(root: Path) -> Photos:
    return Photos(open_folder(root, "train"), "train")


@pytest.mark.parametrize("boxes", [False, True])
@pytest.mark.parametrize("rule", list(Rule))
def test_photos_are_read_decoded_and_cropped(root: Path, rule: Rule, boxes: bool) -> None:
    view = TrainingPhotos(photos(root), 32, seed=4, rule=rule, use_boxes=boxes)
    pixels, steps = walked(view, epoch=2)

    assert steps == ["read", "decode", "crop", *["decode", "crop"] * len(IDS)]
    assert np.array_equal(pixels, looked(view, epoch=2))


def test_the_middles_of_photos_are_read_and_decoded(root: Path) -> None:
    view = ValidationPhotos(photos(root), 32)
    pixels, steps = walked(view, epoch=0)

    assert steps == ["read", *["decode"] * len(IDS)]
    assert np.array_equal(pixels, looked(view, epoch=0))


def test_a_bad_photo_is_what_it_is_to_the_view(root: Path) -> None:
    damage(photo_paths(root, "train")[2])
    skipping = TrainingPhotos(photos(root), 32, seed=4, tolerance=Tolerance(Ledger(10)))
    pixels, steps = walked(skipping, epoch=0)

    assert steps[-1] == "look"
    assert np.array_equal(pixels, looked(skipping, epoch=0))
    with pytest.raises(BadRecordError, match="damaged JPEG"):
        walked(TrainingPhotos(photos(root), 32, seed=4), epoch=0)
