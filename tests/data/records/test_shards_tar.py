"""Which tar files are the shards of a split, and errors for an invalid set."""

from pathlib import Path

import pytest

from convoy.data.records.shards import find_shards, list_shards
from convoy.data.source import Split
from convoy.errors import ConfigError, ConvoyError, DataError


def create_files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
    return folder


def shard_names(folder: Path, split: Split = "train") -> list[str]:
    return [path.name for path in find_shards(folder, split, "webdataset").paths]


def error_message(error_type: type[ConvoyError], folder: Path, split: Split = "train") -> str:
    with pytest.raises(error_type) as caught:
        find_shards(folder, split, "webdataset")
    assert type(caught.value) is error_type
    return str(caught.value)


def test_shards_are_sorted_by_name_and_separated_by_split(tmp_path: Path) -> None:
    create_files(tmp_path, *(f"train-{number:06}.tar" for number in (2, 0, 1)))
    create_files(tmp_path, "validation-000000.tar", "training.tar", "train-000000.txt", "trainer")
    (tmp_path / "distributed/2-instances").mkdir(parents=True)
    create_files(tmp_path / "distributed/2-instances", "train-000003.tar")

    assert shard_names(tmp_path) == [f"train-{number:06}.tar" for number in range(3)]
    assert shard_names(tmp_path, "validation") == ["validation-000000.tar"]


@pytest.mark.parametrize(
    "names", [["train.tar"], ["train_a.tar", "train_b.tar"], ["train1.tar", "train2.tar"]]
)
def test_other_names_that_start_with_the_split_are_accepted(
    names: list[str], tmp_path: Path
) -> None:
    assert shard_names(create_files(tmp_path, *names)) == names


def test_the_prefix_val_is_accepted(tmp_path: Path) -> None:
    assert shard_names(create_files(tmp_path, "val-000000.tar"), "validation") == ["val-000000.tar"]


def test_two_prefixes_for_one_split_are_refused(tmp_path: Path) -> None:
    create_files(tmp_path, "val-000000.tar", "validation-000000.tar")

    assert "validation-000000.tar and val-000000.tar" in error_message(
        ConfigError, tmp_path, "validation"
    )


def test_the_error_for_a_folder_without_shards_names_the_pattern(tmp_path: Path) -> None:
    assert not list_shards(tmp_path, "train", "webdataset")
    assert "validation-000000.tar or val-000000.tar" in error_message(
        ConfigError, tmp_path, "validation"
    )


@pytest.mark.parametrize("name", ["train-000001.tar.gz", "train-000001.tgz", "train-1.tar.zst"])
def test_a_compressed_shard_is_refused_with_its_name(name: str, tmp_path: Path) -> None:
    create_files(tmp_path, "train-000000.tar", name)

    assert f"{tmp_path / name}: a compressed shard" in error_message(DataError, tmp_path)
    assert list_shards(tmp_path, "train", "webdataset")


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([0, 1, 3], "1 of 4 shards are missing, the first is number 2 (train-000003.tar exists)"),
        ([1, 2, 5, 9], "5 of 9 shards are missing, the first is number 3"),
        ([2, 3], "1 of 3 shards are missing, the first is number 1"),
        ([0, 10**17], "shards are missing, the first is number 1"),
    ],
)
def test_a_gap_in_the_numbers_means_a_missing_shard(
    numbers: list[int], reason: str, tmp_path: Path
) -> None:
    create_files(tmp_path, *(f"train-{number:06}.tar" for number in numbers))

    assert reason in error_message(DataError, tmp_path)


def test_numbers_may_start_at_one(tmp_path: Path) -> None:
    assert len(shard_names(create_files(tmp_path, "train-000001.tar", "train-000002.tar"))) == 2


def test_one_number_under_two_names_is_refused(tmp_path: Path) -> None:
    create_files(tmp_path, "train-000000.tar", "train-0.tar", "train-000001.tar")

    assert "exists under another name too" in error_message(DataError, tmp_path)


def test_a_folder_in_place_of_a_shard_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train-000000.tar").mkdir()

    assert "train-000000.tar: not a regular file" in error_message(DataError, tmp_path)
