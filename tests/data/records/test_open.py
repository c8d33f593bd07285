"""Which of the three forms lies in a folder; and what is said where it is none, or several."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tars import write_samples

from convoy.data.records.folder import ImageFolder
from convoy.data.records.open import cropped_side, find_data, open_records
from convoy.data.records.record import Records, Sample
from convoy.data.records.tar import TarShards
from convoy.data.records.tfrecord import TfRecords, write_shard
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError

Write = Callable[[Path, str], None]
SPLITS: tuple[Split, ...] = ("train", "validation")


def folders(home: Path, split: str = "train") -> None:
    for name in ("cat", "dog"):
        (home / split / name).mkdir(parents=True)
        (home / split / name / "1.jpg").write_bytes(b"\xff\xd8")


def tfrecords(home: Path, split: str = "train") -> None:
    home.mkdir(parents=True, exist_ok=True)
    samples = [Sample(b"\xff\xd8", label, "", "", 1, 1) for label in (0, 1)]
    write_shard(home / f"{split}-00000-of-00001", samples)


def tars(home: Path, split: str = "train") -> None:
    home.mkdir(parents=True, exist_ok=True)
    write_samples(home / f"{split}-000000.tar", 0, 1)


FORMS = pytest.mark.parametrize(
    ("write", "kind"), [(folders, ImageFolder), (tfrecords, TfRecords), (tars, TarShards)]
)


def opened(folder: Path, split: Split = "train", heard: list[str] | None = None) -> Records:
    notices = [] if heard is None else heard
    return open_records(folder, split, notices.append, progress=lambda *_: None)


def complaint(folder: Path, split: Split = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        opened(folder, split)
    return str(caught.value)


@FORMS
@pytest.mark.parametrize("below", [".", "imagenet-data"])
def test_each_form_is_recognized(write: Write, kind: type, below: str, tmp_path: Path) -> None:
    for split in SPLITS:
        write(tmp_path / below, split)
    for split in SPLITS:
        records = opened(tmp_path, split)

        assert isinstance(records, kind)
        assert records.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("one", "other"), [(folders, tfrecords), (folders, tars), (tfrecords, tars)]
)
def test_several_forms_are_named(one: Write, other: Write, tmp_path: Path) -> None:
    called = {
        folders: "class folders",
        tfrecords: "TFRecord shards",
        tars: "tar shards",
    }
    one(tmp_path, "train")
    other(tmp_path, "train")
    said = complaint(tmp_path)

    assert "more than once" in said
    assert f"{called[one]} in {tmp_path}" in said
    assert f"{called[other]} in {tmp_path}" in said


def test_two_places_of_one_form_are_named(tmp_path: Path) -> None:
    tars(tmp_path)
    tars(tmp_path / "imagenet-data")
    said = complaint(tmp_path)

    assert f"tar shards in {tmp_path}, tar shards in {tmp_path}/imagenet-data;" in said


def test_splits_may_lie_in_different_forms(tmp_path: Path) -> None:
    tfrecords(tmp_path, "train")
    folders(tmp_path, "val")

    assert isinstance(opened(tmp_path, "train"), TfRecords)
    assert isinstance(opened(tmp_path, "validation"), ImageFolder)


def test_an_empty_folder_is_told_what_was_looked_for(tmp_path: Path) -> None:
    said = complaint(tmp_path, "validation")

    assert "validation or val with one folder a class" in said
    assert "validation-00000-of-00128 (TFRecord) or validation-000000.tar (WebDataset)" in said
    assert "imagenet-data" in said


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    assert "absent: no such folder; name the one with the images" in complaint(tmp_path / "absent")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (folders, "no folder validation/ or val/ in it"),
        (tfrecords, "validation-?????-of-?????"),
        (tars, "no shards validation-000000.tar or val-000000.tar"),
    ],
)
def test_a_split_that_is_not_there_is_missed_in_the_form_of_the_other(
    write: Write, said: str, tmp_path: Path
) -> None:
    write(tmp_path, "train")

    assert said in complaint(tmp_path, "validation")
    assert find_data(tmp_path, "train").folder == tmp_path


def test_one_class_in_shards_is_refused(tmp_path: Path) -> None:
    write_samples(tmp_path / "train-000000.tar", 0, 0, 0)

    assert "one class only, among 3 records of the train split" in complaint(tmp_path)


def test_what_was_passed_over_in_folders_is_told(tmp_path: Path) -> None:
    folders(tmp_path)
    for number in range(4):
        (tmp_path / f"train/dog/{number}.txt").touch()
    heard: list[str] = []
    opened(tmp_path, heard=heard)

    assert heard == [
        f"{tmp_path}: passed over in the train split: dog/0.txt: not named like an image; "
        "dog/1.txt: not named like an image; dog/2.txt: not named like an image, …"
    ]


def test_clean_folders_are_opened_in_silence(tmp_path: Path) -> None:
    folders(tmp_path)
    heard: list[str] = []
    opened(tmp_path, heard=heard)

    assert heard == []


def test_a_compressed_shard_is_recognized_to_be_refused(tmp_path: Path) -> None:
    (tmp_path / "train-000000.tar.gz").touch()

    with pytest.raises(DataError, match="a compressed shard"):
        opened(tmp_path)


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
def test_middles_that_were_stored_are_known_by_their_side(
    tmp_path: Path, steps: tuple[str, ...], side: int | None
) -> None:
    tars(tmp_path)
    table = {"train_transform_pipeline": list(steps)}
    (tmp_path / "metadata.json").write_text(json.dumps(table))

    assert cropped_side(opened(tmp_path)) == side


def test_other_forms_hold_whole_images(tmp_path: Path) -> None:
    folders(tmp_path)

    assert cropped_side(opened(tmp_path)) is None
