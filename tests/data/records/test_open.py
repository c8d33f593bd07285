"""Detection of the data format, and errors if there is none or several."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.tar_files import write_samples

from convoy.data.progress import ProgressCallbacks
from convoy.data.records.folder import ImageFolder
from convoy.data.records.open import find_split, open_records, stored_crop_size
from convoy.data.records.record import Records, Sample
from convoy.data.records.tar import TarShards
from convoy.data.records.tfrecord import TfRecords, write_shard
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError

Write = Callable[[Path, str], None]
SPLITS: tuple[Split, ...] = ("train", "validation")


def write_folders(folder: Path, split: str = "train") -> None:
    for name in ("cat", "dog"):
        (folder / split / name).mkdir(parents=True)
        (folder / split / name / "1.jpg").write_bytes(b"\xff\xd8")


def write_tfrecords(folder: Path, split: str = "train") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    samples = [Sample(b"\xff\xd8", label, "", "", 1, 1) for label in (0, 1)]
    write_shard(folder / f"{split}-00000-of-00001", samples)


def write_tars(folder: Path, split: str = "train") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_samples(folder / f"{split}-000000.tar", 0, 1)


with_each_format = pytest.mark.parametrize(
    ("write", "record_type"),
    [(write_folders, ImageFolder), (write_tfrecords, TfRecords), (write_tars, TarShards)],
)


def open_split(folder: Path, split: Split = "train", notices: list[str] | None = None) -> Records:
    on_notice = print if notices is None else notices.append
    return open_records(folder, split, ProgressCallbacks(on_notice))


def error_message(folder: Path, split: Split = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        open_split(folder, split)
    return str(caught.value)


@with_each_format
@pytest.mark.parametrize("below", [".", "imagenet-data"])
def test_each_format_is_detected(
    write: Write, record_type: type, below: str, tmp_path: Path
) -> None:
    for split in SPLITS:
        write(tmp_path / below, split)
    for split in SPLITS:
        records = open_split(tmp_path, split)

        assert isinstance(records, record_type)
        assert records.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("first", "second"),
    [(write_folders, write_tfrecords), (write_folders, write_tars), (write_tfrecords, write_tars)],
)
def test_several_formats_are_listed(first: Write, second: Write, tmp_path: Path) -> None:
    descriptions = {
        write_folders: "class folders",
        write_tfrecords: "TFRecord shards",
        write_tars: "tar shards",
    }
    first(tmp_path, "train")
    second(tmp_path, "train")
    message = error_message(tmp_path)

    assert "more than once" in message
    assert f"{descriptions[first]} in {tmp_path}" in message
    assert f"{descriptions[second]} in {tmp_path}" in message


def test_two_locations_of_one_format_are_listed(tmp_path: Path) -> None:
    write_tars(tmp_path)
    write_tars(tmp_path / "imagenet-data")
    message = error_message(tmp_path)

    assert f"tar shards in {tmp_path}, tar shards in {tmp_path}/imagenet-data" in message


def test_splits_may_have_different_formats(tmp_path: Path) -> None:
    write_tfrecords(tmp_path, "train")
    write_folders(tmp_path, "val")

    assert isinstance(open_split(tmp_path, "train"), TfRecords)
    assert isinstance(open_split(tmp_path, "validation"), ImageFolder)


def test_the_error_for_an_empty_folder_lists_what_was_expected(tmp_path: Path) -> None:
    message = error_message(tmp_path, "validation")

    assert "validation or val with one folder per class" in message
    assert "validation-00000-of-00128 (TFRecord) or validation-000000.tar (WebDataset)" in message
    assert "imagenet-data" in message


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "absent: no such folder" in error_message(tmp_path / "absent")


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (write_folders, "no folder validation/ or val/ in it"),
        (write_tfrecords, "validation-?????-of-?????"),
        (write_tars, "no shards validation-000000.tar or val-000000.tar"),
    ],
)
def test_a_missing_split_is_expected_in_the_format_of_the_other_split(
    write: Write, reason: str, tmp_path: Path
) -> None:
    write(tmp_path, "train")

    assert reason in error_message(tmp_path, "validation")
    assert find_split(tmp_path, "train").folder == tmp_path


def test_shards_with_a_single_class_are_refused(tmp_path: Path) -> None:
    write_samples(tmp_path / "train-000000.tar", 0, 0, 0)

    assert "only one class among the 3 records of the train split" in error_message(tmp_path)


def test_skipped_files_in_class_folders_are_reported(tmp_path: Path) -> None:
    write_folders(tmp_path)
    for number in range(4):
        (tmp_path / f"train/dog/{number}.txt").touch()
    notices: list[str] = []
    open_split(tmp_path, notices=notices)

    (notice,) = notices
    assert f"{tmp_path}: skipped in the train split: dog/0.txt: not an image extension" in notice
    assert ["dog/2.txt" in notice, "dog/3.txt" in notice] == [True, False]


def test_clean_class_folders_cause_no_notice(tmp_path: Path) -> None:
    write_folders(tmp_path)
    notices: list[str] = []
    open_split(tmp_path, notices=notices)

    assert notices == []


def test_a_compressed_shard_is_detected_and_refused(tmp_path: Path) -> None:
    (tmp_path / "train-000000.tar.gz").touch()

    with pytest.raises(DataError, match="a compressed shard"):
        open_split(tmp_path)


@pytest.mark.parametrize(
    ("steps", "side"),
    [
        (("Resize(256)", "CenterCrop(224)"), 224),
        (("CenterCrop(size=(224, 224))",), 224),
        (("CenterCrop((160, 160))",), 160),
        (("CenterCrop((160, 224))",), None),
        (("Resize(256)",), None),
        ((), None),
    ],
)
def test_the_size_of_stored_center_crops_is_read(
    tmp_path: Path, steps: tuple[str, ...], side: int | None
) -> None:
    write_tars(tmp_path)
    table = {"train_transform_pipeline": list(steps)}
    (tmp_path / "metadata.json").write_text(json.dumps(table))

    assert stored_crop_size(open_split(tmp_path)) == side


def test_class_folders_have_no_stored_crop_size(tmp_path: Path) -> None:
    write_folders(tmp_path)

    assert stored_crop_size(open_split(tmp_path)) is None
