"""Which files make a split of TFRecord shards, and what is said of a set that is none."""

from pathlib import Path

import pytest
from tfrecord_files import write_set

from convoy.data.records.shards import find_shards, list_shards
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError


def found(folder: Path, split: Split = "train") -> tuple[Path, ...]:
    return find_shards(folder, split, "tfrecord").paths


def complaint(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        find_shards(folder, "train", "tfrecord")
    return str(caught.value)


def test_shards_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=12, records=1)
    write_set(tmp_path, shards=2, split="validation")

    assert found(tmp_path) == tuple(paths)
    assert len(found(tmp_path, "validation")) == 2


def test_other_files_are_none_of_its_business(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    for name in ("train-00000-of-00003.gz", "xtrain-00000-of-00003", "train-0-of-3", "README"):
        (tmp_path / name).touch()

    assert found(tmp_path) == tuple(paths)


def test_a_folder_without_shards_is_told_what_was_looked_for(tmp_path: Path) -> None:
    write_set(tmp_path, split="validation")

    assert not list_shards(tmp_path, "train", "tfrecord")
    assert not list_shards(tmp_path / "nowhere", "train", "tfrecord")
    with pytest.raises(ConfigError, match=r"no shards train-\?\?\?\?\?-of-\?\?\?\?\? here"):
        found(tmp_path)


def test_missing_shards_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=5)
    paths[1].unlink()
    paths[4].unlink()

    assert "2 of 5 train shards are missing, the first is train-00001-of-00005" in (
        complaint(tmp_path)
    )


def test_shards_of_two_sets_are_refused(tmp_path: Path) -> None:
    write_set(tmp_path, shards=2)
    write_set(tmp_path, shards=3)

    assert "shards of two sets" in complaint(tmp_path)


def test_one_number_under_two_names_is_refused(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=2)
    (tmp_path / "train-000001-of-00002").write_bytes(paths[0].read_bytes())

    assert "one shard under two names: train-000001-of-00002 and train-00001" in complaint(tmp_path)


def test_a_number_beyond_the_last_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path, shards=2)
    (tmp_path / "train-00002-of-00002").touch()

    assert "train-00002-of-00002: the last of 2 shards has the number 1" in complaint(tmp_path)


def test_two_shards_with_the_same_content_are_named(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=4, records=300)
    paths[3].write_bytes(paths[1].read_bytes())
    said = complaint(tmp_path)

    assert str(paths[1]) in said
    assert f"and {paths[3].name} hold the same {paths[1].stat().st_size} bytes" in said


def test_shards_that_differ_only_in_their_middle_are_two(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=2, records=300)
    data = bytearray(paths[0].read_bytes())
    data[len(data) // 2] ^= 1
    paths[1].write_bytes(data)

    assert found(tmp_path) == tuple(paths)


def test_a_shard_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_set(tmp_path, shards=2)
    paths[1].write_bytes(paths[0].read_bytes())  # of one size, so both are looked into

    def refused(path: Path, _: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refused)

    assert "train-00000-of-00002: cannot be read: Permission denied" in complaint(tmp_path)


def test_a_folder_in_the_place_of_a_shard_is_refused(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=2)
    paths[1].unlink()
    paths[1].mkdir()

    assert "train-00001-of-00002: not a regular file" in complaint(tmp_path)
