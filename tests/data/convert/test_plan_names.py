"""File names in class folders: the names of the source if they are in order, otherwise numbers."""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.data.convert.plan import FileNameChooser, folder_names
from convoy.data.records.folder import ImageFolder
from convoy.data.source import Split


def choose_names(
    names: Sequence[str], labels: Sequence[int], notices: list[str], split: Split = "train"
) -> list[str]:
    chooser = FileNameChooser(notices.append)
    chosen = chooser.choose(split, fake_records(names, labels), np.arange(len(names)))
    return list(map(os.fsdecode, chosen))


def fake_records(names: Sequence[str], labels: Sequence[int]) -> Any:
    return SimpleNamespace(
        filename_and_text=lambda index: (names[index], ""), labels=np.array(labels)
    )


def test_names_in_order_are_kept() -> None:
    notices: list[str] = []
    names = ["b.JPEG", "c.JPEG", "a.png", "ä.jpg"]

    assert choose_names(names, [0, 0, 1, 1], notices) == names
    assert notices == []


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["b.JPEG", "a.JPEG"], "'a.JPEG' comes after 'b.JPEG'"),
        (["a.JPEG", "a.JPEG"], "'a.JPEG' comes after 'a.JPEG'"),
        (["a.JPEG", "b.txt"], "'b.txt' is not a valid image file name"),
        (["a.JPEG", ""], "'' is not a valid image"),
        (["../a.JPEG", "b.JPEG"], "'../a.JPEG' is not a valid image"),
        (["/a.JPEG", "b.JPEG"], "'/a.JPEG' is not a valid image"),
        ([".a.JPEG", "b.JPEG"], "'.a.JPEG' is not a valid image"),
        (["a,b.JPEG", "b.JPEG"], "'a,b.JPEG' is not a valid image"),
        ([" a.JPEG", "b.JPEG"], "' a.JPEG' is not a valid image"),
        (["a\n.JPEG", "b.JPEG"], "is not a valid image"),
        (["a\0.JPEG", "b.JPEG"], "is not a valid image"),
        (["\ufeffa.JPEG", "b.JPEG"], "is not a valid image"),
        (["a" * 251 + ".JPEG", "b.JPEG"], "is not a valid image"),
    ],
    ids=str,
)
def test_names_that_cannot_be_kept_become_numbers(names: list[str], reason: str) -> None:
    notices: list[str] = []
    numbered = choose_names(names, [0, 0], notices)

    assert [name.rpartition(".")[0] for name in numbered] == ["train_00000000", "train_00000001"]
    assert notices[0].startswith("the images of the train split are renamed to numbers: ")
    assert reason in notices[0]


def test_a_name_used_in_two_classes_or_splits_becomes_a_number() -> None:
    notices: list[str] = []
    chooser = FileNameChooser(notices.append)
    names, first = ["a.JPEG", "a.JPEG"], np.arange(1)

    assert choose_names(names, [0, 1], notices)[0] == "train_00000000.jpeg"
    assert list(chooser.choose("train", fake_records(names, [0, 1]), first)) == [b"a.JPEG"]
    assert list(chooser.choose("validation", fake_records(names, [0, 1]), first)) == [
        b"validation_00000000.jpeg"
    ]
    assert "a name is used twice" in notices[-1]


def test_numbered_names_keep_a_known_image_suffix() -> None:
    assert choose_names(["b.PNG", "a"], [0, 0], []) == ["train_00000000.png", "train_00000001.JPEG"]


def test_sorted_class_names_are_kept() -> None:
    notices: list[str] = []

    assert folder_names(["n01", "n02", "tench"], notices.append) == (
        "n01",
        "n02",
        "tench",
    )
    assert notices == []


@pytest.mark.parametrize(
    "names", [("b", "a"), ("a", "a"), ("a", "b/c"), (".a", "b"), ("", "b"), ("a\n", "b")], ids=str
)
def test_class_names_that_would_change_the_labels_become_numbers(names: tuple[str, ...]) -> None:
    notices: list[str] = []

    assert folder_names(names, notices.append) == ("0", "1")
    assert len(notices) == 1


def test_class_numbers_are_zero_padded() -> None:
    names = [f"class {label}" for label in range(11)]

    assert folder_names(names, print)[9:] == ("09", "10")


@given(st.lists(st.text(max_size=6), min_size=2, max_size=12))
def test_folders_of_any_class_names_sort_by_label(
    names: list[str],
) -> None:
    folders = folder_names(names, lambda _: None)

    assert sorted(folders, key=str.encode) == list(folders)
    assert len(set(folders)) == len(names)


@given(
    st.lists(
        st.tuples(st.text(max_size=6), st.sampled_from([".JPEG", ".png", ""])),
        min_size=1,
        max_size=8,
    )
)
def test_a_folder_lists_images_of_any_names_in_order(
    parts: list[tuple[str, str]],
) -> None:
    names = choose_names([name + suffix for name, suffix in parts], [0] * len(parts), [])
    with TemporaryDirectory() as root:
        folder = Path(root) / "train" / "a"
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(b"")
        images = ImageFolder(folder.parent)

        assert [images.filename_and_text(number)[0] for number in range(len(images))] == names
