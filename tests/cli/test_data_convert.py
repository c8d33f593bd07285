"""convoy data convert: options, output and exit codes."""

from pathlib import Path

import pytest
from support.run_convoy import convoy
from support.small_photos import contents, tree, write_photos

from convoy.errors import ExitCode


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def test_a_conversion_prints_its_result_and_the_next_command(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "to"
    result = convoy("data", "convert", source, target, "--to=tfrecord", "--num-files=2,1")

    assert result.code == 0
    assert result.out.splitlines() == [
        f"{target}: 12 train, 3 validation records in 3 files",
        f"next: convoy train --data imagenet --data-dir {target}",
    ]
    assert result.err.splitlines()[-1] == "converting: 15 of 15 records"
    assert {"train-00001-of-00002", "validation-00000-of-00001"} < set(tree(target))


def test_progress_is_printed_every_ten_percent(source: Path, tmp_path: Path) -> None:
    result = convoy("data", "convert", source, tmp_path / "to", "--to=folder")
    lines = result.err.splitlines()

    assert len(lines) == 10
    assert all(line.startswith("converting: ") for line in lines)


def test_skipped_records_are_reported(source: Path, tmp_path: Path) -> None:
    invalid = source / "train" / "n01" / "n01_train_2.JPEG"
    invalid.write_bytes(b"?")
    line = ["data", "convert", source, tmp_path / "to", "--to=webdataset"]
    refused = convoy(*line)
    skipped = convoy(*line, "--bad-records=skip", "--max-bad-records=1")

    assert refused.code == ExitCode.DATA
    assert f"{invalid}: not a JPEG, PNG" in refused.err
    assert skipped.code == 0
    assert skipped.out.startswith(f"skipped: {invalid}: not a JPEG, PNG")
    assert "11 train, 3 validation records" in skipped.out


def test_a_single_split_can_be_converted_and_shuffled(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "to"
    result = convoy(
        *("data", "convert", source, target, "--to=tfrecord"), "--split=train", "--shuffle=5"
    )
    original = contents(source, "train")

    assert result.code == 0
    assert not any(name.startswith("validation") for name in tree(target))
    assert contents(target, "train") != original
    assert sorted(contents(target, "train")) == sorted(original)


def test_all_invalid_options_are_reported_together(tmp_path: Path) -> None:
    result = convoy(
        *("data", "convert", tmp_path, tmp_path / "to", "--to=folder", "--num-files=0,1,2"),
        *("--records-per-file=0", "--shuffle=-1", "--workers=0", "--max-bad-records=-1"),
    )
    lines = result.err.splitlines()

    assert result.code == ExitCode.CONFIG
    assert [line.split()[1] for line in lines] == [
        *("--num-files", "--num-files", "--shuffle", "--num-files", "--num-files"),
        *("--records-per-file", "--workers", "--max-bad-records", "--shuffle"),
    ]
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("text", ["many", "1,", "1.5", ""])
def test_an_invalid_number_of_files_is_refused(text: str, tmp_path: Path) -> None:
    line = ["data", "convert", tmp_path, tmp_path / "to", "--to=tfrecord"]
    result = convoy(*line, f"--num-files={text}")

    assert result.code == ExitCode.CONFIG
    assert "--num-files" in result.err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--shards=2,1", "--num-files=2,1"),
        ("--shard-records=5", "--records-per-file=5"),
    ],
)
def test_deprecated_spellings_are_accepted_but_not_shown_in_the_help(
    old: str, new: str, source: Path, tmp_path: Path
) -> None:
    for target, option in (("old", old), ("new", new)):
        line = ["data", "convert", source, tmp_path / target, "--to=tfrecord", option]
        assert convoy(*line).code == 0
    help_text = convoy("data", "convert", "--help").out

    assert tree(tmp_path / "old") == tree(tmp_path / "new")
    assert new.partition("=")[0] in help_text
    assert old.partition("=")[0] not in help_text


def test_a_source_without_images_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = convoy("data", "convert", tmp_path / "empty", tmp_path / "to", "--to=tfrecord")

    assert result.code == ExitCode.CONFIG
    assert "no images here" in result.err
    assert not (tmp_path / "to").exists()


def test_a_target_that_cannot_be_created_is_reported(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below_a_file = convoy("data", "convert", source, tmp_path / "file" / "to", "--to=tfrecord")
    onto_a_file = convoy("data", "convert", source, tmp_path / "file", "--to=tfrecord")

    assert below_a_file.code == ExitCode.STORAGE
    assert "Not a directory" in below_a_file.err
    assert onto_a_file.code == ExitCode.CONFIG
    assert "not a folder" in onto_a_file.err
