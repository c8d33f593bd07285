"""Names in class folders: those of the source where the order allows, numbers otherwise."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.data.convert.plan import FileNames, folder_names
from convoy.data.records.folder import list_images
from convoy.data.source import Split


def chosen(
    names: Sequence[str], labels: Sequence[int], told: list[str], split: Split = "train"
) -> list[str]:
    chosen = FileNames(told.append).of(split, stored(names, labels), np.arange(len(names)))
    return list(map(os.fsdecode, chosen))


def stored(names: Sequence[str], labels: Sequence[int]) -> Any:
    return SimpleNamespace(words=lambda number: (names[number], ""), labels=np.array(labels))


def test_names_in_order_are_kept() -> None:
    told: list[str] = []
    names = ["b.JPEG", "c.JPEG", "a.png", "ä.jpg"]

    assert chosen(names, [0, 0, 1, 1], told) == names
    assert told == []


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["b.JPEG", "a.JPEG"], "'a.JPEG' comes behind 'b.JPEG'"),
        (["a.JPEG", "a.JPEG"], "'a.JPEG' comes behind 'a.JPEG'"),
        (["a.JPEG", "b.txt"], "'b.txt' is no name for an image"),
        (["a.JPEG", ""], "'' is no name"),
        (["../a.JPEG", "b.JPEG"], "'../a.JPEG' is no name"),
        (["/a.JPEG", "b.JPEG"], "'/a.JPEG' is no name"),
        ([".a.JPEG", "b.JPEG"], "'.a.JPEG' is no name"),
        (["a,b.JPEG", "b.JPEG"], "'a,b.JPEG' is no name"),
        ([" a.JPEG", "b.JPEG"], "' a.JPEG' is no name"),
        (["a\n.JPEG", "b.JPEG"], "is no name"),
        (["a\0.JPEG", "b.JPEG"], "is no name"),
        (["\ufeffa.JPEG", "b.JPEG"], "is no name"),
        (["a" * 251 + ".JPEG", "b.JPEG"], "is no name"),
    ],
    ids=str,
)
def test_names_that_cannot_stay_become_numbers(names: list[str], reason: str) -> None:
    told: list[str] = []
    numbered = chosen(names, [0, 0], told)

    assert [name.rpartition(".")[0] for name in numbered] == ["train_00000000", "train_00000001"]
    assert told[0].startswith("the images of the train split get numbers for names: ")
    assert reason in told[0]


def test_a_name_in_two_classes_or_splits_would_share_its_boxes() -> None:
    told: list[str] = []
    both = FileNames(told.append)
    names, one = ["a.JPEG", "a.JPEG"], np.arange(1)

    assert chosen(names, [0, 1], told)[0] == "train_00000000.jpeg"
    assert list(both.of("train", stored(names, [0, 1]), one)) == [b"a.JPEG"]
    assert list(both.of("validation", stored(names, [0, 1]), one)) == [b"validation_00000000.jpeg"]
    assert "a name comes twice" in told[-1]


def test_numbers_keep_the_kind_of_the_image_where_it_is_known() -> None:
    assert chosen(["b.PNG", "a"], [0, 0], []) == ["train_00000000.png", "train_00000001.JPEG"]


def test_sorted_class_names_are_kept() -> None:
    told: list[str] = []

    assert folder_names(["n01", "n02", "tench, a fish"[:5]], told.append) == ("n01", "n02", "tench")
    assert told == []


@pytest.mark.parametrize(
    "names", [("b", "a"), ("a", "a"), ("a", "b/c"), (".a", "b"), ("", "b"), ("a\n", "b")], ids=str
)
def test_classes_whose_names_would_number_them_anew_get_numbers(names: tuple[str, ...]) -> None:
    told: list[str] = []

    assert folder_names(names, told.append) == ("0", "1")
    assert len(told) == 1


def test_class_numbers_are_as_wide_as_the_last_one() -> None:
    names = [f"class {label}" for label in range(11)]

    assert folder_names(names, print)[9:] == ("09", "10")


@given(st.lists(st.text(max_size=6), min_size=2, max_size=12))
def test_whatever_classes_are_called_their_folders_sort_as_they_are_numbered(
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
def test_whatever_images_are_called_a_folder_lists_them_in_their_order(
    parts: list[tuple[str, str]],
) -> None:
    from tempfile import TemporaryDirectory

    names = chosen([name + suffix for name, suffix in parts], [0] * len(parts), [])
    with TemporaryDirectory() as place:
        folder = Path(place) / "train" / "a"
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(b"")
        listing = list_images(folder.parent)

        assert [name.decode() for name in listing.names] == names
