"""Class folders without train/ and validation/: a share of each class is the validation split."""

from pathlib import Path

import pytest
from support.small_photos import jpeg, write_photos

from convoy.data.progress import ProgressCallbacks
from convoy.data.records.folder import ImageFolder, open_folder
from convoy.data.records.open import available_splits, find_split, open_records
from convoy.data.source import Split
from convoy.errors import ConfigError

COUNTS = {"cat": 9, "dog": 2, "eel": 1, "fox": 40}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, count in COUNTS.items():
        (tmp_path / name).mkdir()
        for index in range(count):
            (tmp_path / name / f"{index}.jpg").write_bytes(jpeg(index))
    return tmp_path


def names(folder: Path, split: Split, share: float = 0.1) -> set[str]:
    images = open_folder(folder, split, share)
    return {str(images.location(index)) for index in range(len(images))}


def counts(images: ImageFolder) -> dict[str, int]:
    labels = images.labels.tolist()
    return {name: labels.count(label) for label, name in enumerate(images.class_names)}


def test_both_splits_together_are_all_images_once(folder: Path) -> None:
    training, validation = (names(folder, split) for split in ("train", "validation"))

    assert not training & validation
    assert training | validation == {str(path) for path in folder.rglob("*.jpg")}
    assert available_splits(folder) == ["train", "validation"]


def test_each_class_gives_its_share_and_keeps_an_image(folder: Path) -> None:
    assert counts(open_folder(folder, "validation")) == {"cat": 1, "dog": 1, "eel": 0, "fox": 4}
    assert counts(open_folder(folder, "train")) == {"cat": 8, "dog": 1, "eel": 1, "fox": 36}
    assert counts(open_folder(folder, "validation", 0.9))["cat"] == 8
    assert counts(open_folder(folder, "train", 0.9))["dog"] == 1


def test_an_added_image_moves_at_most_one_other(folder: Path) -> None:
    before = names(folder, "validation")
    (folder / "fox" / "another.jpg").write_bytes(jpeg(99))

    assert len(names(folder, "validation") ^ before) <= 2


def test_a_folder_without_images_is_no_class(folder: Path) -> None:
    (folder / "notes").mkdir()
    (folder / "notes" / "read.txt").write_text("text")
    images = open_folder(folder, "train")

    assert images.class_names == tuple(COUNTS)
    assert any("notes" in text for text in images.skipped_files)
    assert images.read(len(images) - 1).encoded  # the labels still name the right folders


def test_opening_says_how_many_images_validate(folder: Path) -> None:
    notices: list[str] = []
    open_records(folder, "validation", ProgressCallbacks(on_notice=notices.append), 0.5)

    (notice,) = notices
    assert "25 images" in notice and "50%" in notice and "--validation-share" in notice


def test_a_folder_with_splits_is_not_divided(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos", {"n01": 4, "n02": 4}, validation=2)

    assert counts(open_folder(root, "train", 0.9)) == {"n01": 4, "n02": 4}
    assert counts(open_folder(root, "validation", 0.9)) == {"n01": 2, "n02": 2}


def test_the_folder_around_a_dataset_is_not_one_but_names_it(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "unpacked" / "photos")
    with pytest.raises(ConfigError, match=r"did you mean .*unpacked/photos"):
        find_split(root.parent, "train")
