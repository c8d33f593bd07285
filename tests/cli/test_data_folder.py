"""A folder of images is enough: --data-dir alone, or a positional argument."""

import json
from pathlib import Path

import pytest
from support.run_convoy import TINY, convoy
from support.small_photos import converted, write_photos

from convoy.errors import ExitCode

RUN = [word for word in TINY if not word.startswith(("--data=", "--samples", "--image"))]


def planned_data(*words: str | Path) -> tuple[str, str]:
    plan = json.loads(convoy("plan", *words, "--model", "resnet8", "--json").out)
    option = plan["options"]["data"]
    return option["value"], option["source"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", {"n01": 40, "n02": 40})


def test_class_folders_tfrecords_and_tars_are_recognized(photos: Path, tmp_path: Path) -> None:
    folders = [photos, converted(photos, tmp_path / "r", "tfrecord", 50)]
    folders.append(converted(photos, tmp_path / "t", "webdataset", 50))
    for folder in folders:
        assert planned_data("--data-dir", folder) == ("imagenet", f"files in {folder}")


def test_cifar_files_are_recognized_without_reading_them(tmp_path: Path) -> None:
    for name, file in (("cifar10", "data_batch_1.bin"), ("cifar100", "train.bin")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_bytes(b"")
        assert planned_data("--data-dir", tmp_path / name)[0] == name


def test_a_positional_argument_is_the_data_folder(photos: Path) -> None:
    assert planned_data(photos)[0] == "imagenet"
    assert convoy("plan", photos, "other").code == ExitCode.CONFIG
    assert convoy("plan", photos, "--data-dir", photos).code == ExitCode.CONFIG


def test_the_environment_alone_does_not_choose_the_dataset(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", str(photos))

    assert planned_data()[0] == "shapes"


@pytest.mark.parametrize("data", ["shapes", "generated", "synthetic"])
def test_a_dataset_without_files_refuses_a_folder(photos: Path, data: str) -> None:
    refused = convoy("train", "--data", data, "--data-dir", photos)

    assert refused.code == ExitCode.CONFIG
    assert f"--data {data}" in refused.err and str(photos) in refused.err


def test_a_missing_folder_and_one_without_images_are_refused(tmp_path: Path) -> None:
    for folder, fact in ((tmp_path / "gone", "no such folder"), (tmp_path, "no images")):
        refused = convoy("train", "--data-dir", folder)
        assert refused.code == ExitCode.CONFIG
        assert fact in refused.err and str(folder) in refused.err


def test_a_flat_folder_trains_and_validates(photos: Path, tmp_path: Path) -> None:
    words = [*RUN, "--model=resnet18", "--image-size=32", "--validation-mode=after"]
    options = ["--output", tmp_path / "run", "--validation-share=0.25"]
    trained = convoy("train", photos / "train", *words, *options)

    assert trained.code == 0, trained.err
    assert "--validation-share" in trained.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["updates"] == 6  # two epochs of 60 images in batches of 16
    assert convoy("validate", tmp_path / "run", "--json").code == 0
