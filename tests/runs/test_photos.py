"""Runs on folders of photos: bit-identical weights, and the policy for bad photos."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.photo_files import damage, photo_paths, write_folder
from support.run_convoy import CommandResult, convoy

from convoy.config.schema import build_config
from convoy.data.sources.open import open_source
from convoy.models.network import plan_network

WORDS = [
    "--model=resnet8",
    "--data=imagenet",
    "--image-size=24",
    "--micro-batch-size=2",
    "--updates=4",
    "--lr=0.02",
    "--threads=1",
    "--progress=plain",
    "--valid-batch-size=3",
]
SINGLE_PROCESS = "--gradient-accumulation=6"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """25 photos: two updates per epoch, and one photo that is not used."""
    return write_folder(tmp_path / "photos", train=25, validation=7)


def train(root: Path, output: Path, *words: str) -> CommandResult:
    result = convoy("train", *WORDS, f"--data-dir={root}", f"--output={output}", *words)
    assert result.code == 0, result.err
    return result


def summary(output: Path) -> dict[str, Any]:
    return json.loads((output / "summary.json").read_text())


def weights(root: Path, output: Path, *words: str) -> str:
    train(root, output, *words)
    return str(summary(output)["weights_sha256"])


def test_neither_workers_nor_rebatching_change_any_bit(root: Path, tmp_path: Path) -> None:
    found = {
        weights(root, tmp_path / f"run{number}", SINGLE_PROCESS, *words)
        for number, words in enumerate(
            [
                ("--dataloader-worker=0",),
                ("--dataloader-worker=1", "--no-dataset-cache"),
                ("--dataloader-worker=2", "--prefetch-depth=1"),
                ("--dataloader-worker=3", "--dataloader-rebatch-size=1"),
                ("--dataloader-worker=4", "--webdataset-memory-cache-ratio=0.5"),
                ("--dataloader-worker=2", "--dataloader-kind=processes"),
                (),
            ]
        )
    }

    assert len(found) == 1


@pytest.mark.processes
def test_neither_replicas_nor_stages_change_any_bit(root: Path, tmp_path: Path) -> None:
    layouts = {
        "one": (SINGLE_PROCESS,),
        "two replicas of two stages": (
            "--replicas=2",
            "--shards=2",
            "--pipeline-schedule=1f1b",
            "--gradient-accumulation=3",
        ),
    }
    runs = {name: summary_of(root, tmp_path / name, *words) for name, words in layouts.items()}

    assert len({run["weights_sha256"] for run in runs.values()}) == 1
    assert {run["samples"] for run in runs.values()} == {7}
    assert len({(run["top1"], run["top5"]) for run in runs.values()}) == 1


def summary_of(root: Path, output: Path, *words: str) -> dict[str, Any]:
    """The summary, with the number of samples of the last validation."""
    train(root, output, *words)
    last = (output / "validation.jsonl").read_text().splitlines()[-1]
    return {**summary(output), "samples": json.loads(last)["samples"]}


def test_the_network_has_the_classes_of_the_folder(root: Path, tmp_path: Path) -> None:
    train(root, tmp_path / "run", SINGLE_PROCESS)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())

    assert plan["options"]["num_classes"] == {"value": 3, "source": f"data in {root}"}


def test_fewer_classes_than_the_folder_has_are_refused(root: Path, tmp_path: Path) -> None:
    words = (f"--data-dir={root}", f"--output={tmp_path / 'run'}", "--num-classes=2")
    result = convoy("train", *WORDS, *words)

    assert result.code == 2
    assert result.err.strip().endswith("has 3 classes, but the network has 2; use --num-classes 3")


def test_a_fraction_of_the_samples_gives_a_shorter_epoch(root: Path, tmp_path: Path) -> None:
    train(root, tmp_path / "run", "--dataset-percentage-to-use=50", "--gradient-accumulation=2")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())

    assert plan["updates"]["per_epoch"] == 3  # 12 of 25 photos, 4 per update


@pytest.mark.parametrize(
    "option",
    [
        "--use-bbox-info",
        "--crop-rule=tensorflow",
        "--no-augment",
        "--no-normalize-std",
        "--normalization-location=none",
        "--seed=1",
    ],
)
def test_augmentation_options_change_the_weights(tmp_path: Path, option: str) -> None:
    root = write_folder(tmp_path / "photos", train=25, validation=7, boxes=True)

    assert weights(root, tmp_path / "default", SINGLE_PROCESS) != weights(
        root, tmp_path / "other", SINGLE_PROCESS, option
    )


def test_a_bad_photo_ends_the_run_and_is_named(root: Path, tmp_path: Path) -> None:
    path = photo_paths(root, "train")[3]
    damage(path)
    result = convoy(
        "train", *WORDS, SINGLE_PROCESS, f"--data-dir={root}", f"--output={tmp_path / 'run'}"
    )

    assert result.code == 3
    assert f"convoy: {path}: damaged JPEG" in result.err
    assert "Traceback" not in result.err


SKIP = ("--bad-records=skip", "--max-bad-records=3")


@pytest.mark.processes
def test_skipped_photos_are_counted_reported_and_the_same_in_every_layout(
    root: Path, tmp_path: Path
) -> None:
    bad = [photo_paths(root, "train")[3], photo_paths(root, "train")[17]]
    bad += [photo_paths(root, "validation")[2]]
    for path in bad:
        damage(path)
    layouts = {
        "one": (SINGLE_PROCESS,),
        "three replicas": ("--replicas=3", "--gradient-accumulation=2"),
        "two stages": (
            "--shards=2",
            SINGLE_PROCESS,
            "--dataloader-kind=processes",
            "--dataloader-worker=1",
        ),
    }
    runs = {
        name: summary_of(root, tmp_path / name, *SKIP, *words) for name, words in layouts.items()
    }

    assert len({run["weights_sha256"] for run in runs.values()}) == 1
    assert [(run["samples"], run["bad_records"]) for run in runs.values()] == [(6, 3)] * 3
    assert len({(run["top1"], run["top5"]) for run in runs.values()}) == 1
    for name in runs:
        listed = (tmp_path / name / "bad_records.jsonl").read_text().splitlines()
        events = (tmp_path / name / "events.jsonl").read_text()

        assert sorted(json.loads(line)["file"] for line in listed) == sorted(map(str, bad))
        assert events.count('"bad_record"') == 3


def test_too_many_bad_photos_end_the_run_with_a_list(root: Path, tmp_path: Path) -> None:
    for path in photo_paths(root, "train")[::6]:
        damage(path)
    words = (SINGLE_PROCESS, *SKIP, f"--data-dir={root}", f"--output={tmp_path / 'run'}")
    result = convoy("train", *WORDS, *words)

    assert result.code == 3
    assert "4 bad records, --max-bad-records allows 3:" in result.err
    assert result.err.count("damaged JPEG") == 4


def test_a_run_that_skips_resumes_bit_exactly(root: Path, tmp_path: Path) -> None:
    for path in photo_paths(root, "train")[3:20:8]:
        damage(path)
    expected = weights(root, tmp_path / "reference", SINGLE_PROCESS, *SKIP)
    train_until(root, tmp_path / "resumed", "--stop-after=1")
    result = convoy("resume", tmp_path / "resumed")

    assert result.code == 0, result.err
    assert summary(tmp_path / "resumed")["weights_sha256"] == expected
    assert (
        summary(tmp_path / "resumed")["bad_records"]
        == summary(tmp_path / "reference")["bad_records"]
    )


def train_until(root: Path, output: Path, stop: str) -> None:
    words = (f"--data-dir={root}", f"--output={output}", SINGLE_PROCESS, *SKIP, stop)

    assert convoy("train", *WORDS, *words).code == 75


def test_changed_photos_are_detected_on_resume(root: Path, tmp_path: Path) -> None:
    train_until(root, tmp_path / "run", "--stop-after=1")
    other = write_folder(tmp_path / "other", train=26, validation=7)
    shutil.rmtree(root)
    other.rename(root)

    result = convoy("resume", tmp_path / "run")

    assert result.code == 4
    assert "data has changed" in result.err


def test_validate_counts_every_photo_once(root: Path, tmp_path: Path) -> None:
    train(root, tmp_path / "run", SINGLE_PROCESS)
    for size in (1, 3, 100):
        result = convoy("validate", tmp_path / "run", f"--valid-batch-size={size}", "--json")

        assert {row["samples"] for row in json.loads(result.out)} == {7}


def test_validation_skips_bad_photos_when_enabled(root: Path, tmp_path: Path) -> None:
    train(root, tmp_path / "run", SINGLE_PROCESS, "--validation-mode=none", *SKIP)
    path = photo_paths(root, "validation")[4]
    damage(path)
    skipped = convoy("validate", tmp_path / "run", "--json")
    strict = convoy("validate", tmp_path / "run", "--json", "--bad-records=error")

    assert {row["samples"] for row in json.loads(skipped.out)} == {6}
    assert skipped.err.count(f"skipped {path}: damaged JPEG") == 1
    assert (strict.code, "damaged JPEG" in strict.err) == (3, True)


def test_a_plan_counts_the_photos(root: Path) -> None:
    result = convoy("plan", *WORDS[:4], "--gradient-accumulation=2", f"--data-dir={root}", "--json")
    plan = json.loads(result.out)

    assert (plan["updates"]["per_epoch"], plan["options"]["num_classes"]["value"]) == (6, 3)


def test_pre_cropped_images_are_validated_uncropped(root: Path, tmp_path: Path) -> None:
    tars = tmp_path / "tars"
    assert convoy("data", "convert", root, tars, "--to=webdataset").code == 0
    metadata = json.loads((tars / "metadata.json").read_text())
    metadata["validation_transform_pipeline"] = ["Resize(27)", "CenterCrop(24)"]
    (tars / "metadata.json").write_text(json.dumps(metadata))
    config = build_config({"data": "imagenet", "data_dir": str(tars), "num_classes": 3})
    network = plan_network(config)

    assert open_source(config.data, network, "validation").stored_size == 24
    assert open_source(config.data, network, "train").stored_size is None


def test_a_plan_needs_no_photos() -> None:
    result = convoy("plan", *WORDS[:4], "--data-dir=nowhere", "--json")

    assert json.loads(result.out)["updates"]["per_epoch"] == 1_281_167 // 2
