"""convoy data convert: its words, what it says, and its exit codes."""

from pathlib import Path

import pytest
from running import convoy
from small_photos import contents, tree, write_photos

from convoy.errors import ExitCode


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def test_a_conversion_says_what_it_wrote_and_how_to_go_on(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "to"
    said = convoy("data", "convert", source, target, "--to=tfrecord", "--shards=2,1")

    assert said.code == 0
    assert said.out.splitlines() == [
        f"{target}: 12 train, 3 validation records in 3 shards",
        f"go on: convoy train --data imagenet --data-dir {target}",
    ]
    assert said.err.splitlines()[-1] == "converting: 15 of 15 records"
    assert {"train-00001-of-00002", "validation-00000-of-00001"} < set(tree(target))


def test_progress_is_told_for_every_tenth(source: Path, tmp_path: Path) -> None:
    said = convoy("data", "convert", source, tmp_path / "to", "--to=folder")
    lines = said.err.splitlines()

    assert len(lines) == 10
    assert all(line.startswith("converting: ") for line in lines)


def test_records_that_were_left_out_are_told(source: Path, tmp_path: Path) -> None:
    bad = source / "train" / "n01" / "n01_train_2.JPEG"
    bad.write_bytes(b"?")
    line = ["data", "convert", source, tmp_path / "to", "--to=webdataset"]
    refused = convoy(*line)
    skipped = convoy(*line, "--bad-records=skip", "--max-bad-records=1")

    assert refused.code == ExitCode.DATA
    assert f"{bad}: no JPEG, PNG" in refused.err
    assert skipped.code == 0
    assert skipped.out.startswith(f"left out: {bad}: no JPEG, PNG")
    assert "11 train, 3 validation records" in skipped.out


def test_one_split_and_a_shuffle_are_done_on_request(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "to"
    said = convoy(
        *("data", "convert", source, target, "--to=tfrecord"), "--split=train", "--shuffle=5"
    )
    plain = contents(source, "train")

    assert said.code == 0
    assert not any(name.startswith("validation") for name in tree(target))
    assert contents(target, "train") != plain
    assert sorted(contents(target, "train")) == sorted(plain)


def test_all_words_that_do_not_fit_are_told_together(tmp_path: Path) -> None:
    said = convoy(
        *("data", "convert", tmp_path, tmp_path / "to", "--to=folder", "--shards=0,1,2"),
        *("--shard-records=0", "--shuffle=-1", "--workers=0", "--max-bad-records=-1"),
    )
    lines = said.err.splitlines()

    assert said.code == ExitCode.CONFIG
    assert [line.split()[1] for line in lines] == [
        *("--shards", "--shards", "--shuffle", "--shards", "--shards"),
        *("--shard-records", "--workers", "--max-bad-records", "--shuffle"),
    ]
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("text", ["many", "1,", "1.5", ""])
def test_a_number_of_shards_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    said = convoy("data", "convert", tmp_path, tmp_path / "to", "--to=tfrecord", f"--shards={text}")

    assert said.code == ExitCode.CONFIG
    assert "--shards" in said.err


def test_a_source_without_images_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = convoy("data", "convert", tmp_path / "empty", tmp_path / "to", "--to=tfrecord")

    assert said.code == ExitCode.CONFIG
    assert "no images there" in said.err
    assert not (tmp_path / "to").exists()


def test_a_target_that_cannot_be_made_is_told_in_plain_words(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    inside = convoy("data", "convert", source, tmp_path / "file" / "to", "--to=tfrecord")
    itself = convoy("data", "convert", source, tmp_path / "file", "--to=tfrecord")

    assert inside.code == ExitCode.STORAGE
    assert "Not a directory" in inside.err
    assert itself.code == ExitCode.CONFIG
    assert "not a folder" in itself.err
