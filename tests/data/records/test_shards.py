"""Which files are the TFRecord shards of a split, and errors for an invalid set."""

from pathlib import Path

import pytest
from support.tfrecord_files import write_set

from convoy.data.records.shards import find_shards, list_shards
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError


def shard_paths(folder: Path, split: Split = "train") -> tuple[Path, ...]:
    return find_shards(folder, split, "tfrecord").paths


def error_message(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        find_shards(folder, "train", "tfrecord")
    return str(caught.value)


def test_shards_are_sorted_by_number(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=12, records=1)
    write_set(tmp_path, shards=2, split="validation")

    assert shard_paths(tmp_path) == tuple(paths)
    assert len(shard_paths(tmp_path, "validation")) == 2


def test_other_files_are_ignored(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    for name in ("train-00000-of-00003.gz", "xtrain-00000-of-00003", "train-0-of-3", "README"):
        (tmp_path / name).touch()

    assert shard_paths(tmp_path) == tuple(paths)


def test_the_error_for_a_folder_without_shards_names_the_pattern(tmp_path: Path) -> None:
    write_set(tmp_path, split="validation")

    assert not list_shards(tmp_path, "train", "tfrecord")
    assert not list_shards(tmp_path / "nowhere", "train", "tfrecord")
    with pytest.raises(ConfigError, match=r"no shards train-\?\?\?\?\?-of-\?\?\?\?\?"):
        shard_paths(tmp_path)


def test_missing_shards_are_counted_and_the_first_is_listed(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=5)
    paths[1].unlink()
    paths[4].unlink()

    assert "2 of 5 train shards are missing, the first is train-00001-of-00005" in (
        error_message(tmp_path)
    )


def test_shards_of_two_sets_are_refused(tmp_path: Path) -> None:
    write_set(tmp_path, shards=2)
    write_set(tmp_path, shards=3)

    assert "shards of two different sets" in error_message(tmp_path)


def test_one_number_under_two_names_is_refused(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=2)
    (tmp_path / "train-000001-of-00002").write_bytes(paths[0].read_bytes())

    assert "one shard under two names: train-000001-of-00002 and train-00001" in error_message(
        tmp_path
    )


def test_a_shard_number_out_of_range_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path, shards=2)
    (tmp_path / "train-00002-of-00002").touch()

    assert "train-00002-of-00002: out of range, the last of 2 shards is number 1" in error_message(
        tmp_path
    )


def test_two_shards_with_the_same_content_are_refused(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=4, records=300)
    paths[3].write_bytes(paths[1].read_bytes())
    message = error_message(tmp_path)

    assert str(paths[1]) in message
    assert f"and {paths[3].name} contain the same {paths[1].stat().st_size} bytes" in message


def test_shards_that_differ_only_in_the_middle_are_distinct(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=2, records=300)
    data = bytearray(paths[0].read_bytes())
    data[len(data) // 2] ^= 1
    paths[1].write_bytes(data)

    assert shard_paths(tmp_path) == tuple(paths)


def test_the_error_for_an_unreadable_shard_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_set(tmp_path, shards=2)
    paths[1].write_bytes(paths[0].read_bytes())  # of equal size, so that both are read

    def refuse(path: Path, _: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)

    assert "train-00000-of-00002: cannot be read: Permission denied" in error_message(tmp_path)


def test_a_folder_in_place_of_a_shard_is_refused(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=2)
    paths[1].unlink()
    paths[1].mkdir()

    assert "train-00001-of-00002: not a regular file" in error_message(tmp_path)
