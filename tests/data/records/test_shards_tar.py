"""Which tar files are the shards of a split, and when they are no set."""

from pathlib import Path

import pytest

from convoy.data.records.shards import find_shards, list_shards
from convoy.data.source import Split
from convoy.errors import ConfigError, ConvoyError, DataError


def folder_with(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
    return folder


def found(folder: Path, split: Split = "train") -> list[str]:
    return [path.name for path in find_shards(folder, split, "webdataset").paths]


def complaint(kind: type[ConvoyError], folder: Path, split: Split = "train") -> str:
    with pytest.raises(kind) as caught:
        find_shards(folder, split, "webdataset")
    assert type(caught.value) is kind
    return str(caught.value)


def test_shards_are_sorted_by_name_and_kept_apart_by_split(tmp_path: Path) -> None:
    folder_with(tmp_path, *(f"train-{number:06}.tar" for number in (2, 0, 1)))
    folder_with(tmp_path, "validation-000000.tar", "training.tar", "train-000000.txt", "trainer")
    (tmp_path / "distributed/2-instances").mkdir(parents=True)
    folder_with(tmp_path / "distributed/2-instances", "train-000003.tar")

    assert found(tmp_path) == [f"train-{number:06}.tar" for number in range(3)]
    assert found(tmp_path, "validation") == ["validation-000000.tar"]


@pytest.mark.parametrize(
    "names", [["train.tar"], ["train_a.tar", "train_b.tar"], ["train1.tar", "train2.tar"]]
)
def test_other_names_that_begin_with_the_split_are_taken(names: list[str], tmp_path: Path) -> None:
    assert found(folder_with(tmp_path, *names)) == names


def test_the_short_name_of_validation_is_taken(tmp_path: Path) -> None:
    assert found(folder_with(tmp_path, "val-000000.tar"), "validation") == ["val-000000.tar"]


def test_two_names_of_one_split_are_refused(tmp_path: Path) -> None:
    folder_with(tmp_path, "val-000000.tar", "validation-000000.tar")

    assert "validation-000000.tar and val-000000.tar" in complaint(
        ConfigError, tmp_path, "validation"
    )


def test_a_folder_without_shards_says_what_was_looked_for(tmp_path: Path) -> None:
    assert not list_shards(tmp_path, "train", "webdataset")
    assert "validation-000000.tar or val-000000.tar" in complaint(
        ConfigError, tmp_path, "validation"
    )


@pytest.mark.parametrize("name", ["train-000001.tar.gz", "train-000001.tgz", "train-1.tar.zst"])
def test_a_compressed_shard_is_refused_by_name(name: str, tmp_path: Path) -> None:
    folder_with(tmp_path, "train-000000.tar", name)

    assert f"{tmp_path / name}: a compressed shard" in complaint(DataError, tmp_path)
    assert list_shards(tmp_path, "train", "webdataset")


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([0, 1, 3], "1 of 4 shards are missing, number 2 is the first (train-000003.tar is there)"),
        ([1, 2, 5, 9], "5 of 9 shards are missing, number 3 is the first"),
        ([2, 3], "1 of 3 shards are missing, number 1 is the first"),
        ([0, 10**17], "shards are missing, number 1 is the first"),
    ],
)
def test_a_gap_in_the_numbers_is_a_missing_shard(
    numbers: list[int], said: str, tmp_path: Path
) -> None:
    folder_with(tmp_path, *(f"train-{number:06}.tar" for number in numbers))

    assert said in complaint(DataError, tmp_path)


def test_numbers_may_begin_with_one(tmp_path: Path) -> None:
    assert len(found(folder_with(tmp_path, "train-000001.tar", "train-000002.tar"))) == 2


def test_one_number_under_two_names_is_refused(tmp_path: Path) -> None:
    folder_with(tmp_path, "train-000000.tar", "train-0.tar", "train-000001.tar")

    assert "is there under another name too" in complaint(DataError, tmp_path)


def test_a_folder_in_place_of_a_shard_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train-000000.tar").mkdir()

    assert "train-000000.tar: not a regular file" in complaint(DataError, tmp_path)
