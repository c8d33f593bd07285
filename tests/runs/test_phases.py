"""Half-resolution training and fine-tuning in one command: stopped, killed, resumed anywhere."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import TINY, convoy, convoy_process

from convoy.config.sections.data import DataConfig
from convoy.data.source import Split
from convoy.data.sources.shapes import ShapesSource
from convoy.models.network import NetworkPlan

# 6 updates of 2 × 8 images of 10 × 10, then 2 × 12 updates of 2 × 4 images of 16 × 16.
COMMON_OPTIONS = [item for item in TINY if "image-size" not in item and "epoch" not in item]
HALF_RES_OPTIONS = [
    *COMMON_OPTIONS,
    "--image-size=16",
    "--epoch=1",
    "--ckpts-per-epoch=2",
    "--half-res-training",
    "--weight-avg-strategy=mean",
    "--fine-tune-epoch=2",
    "--fine-tune-lr=0.05",
    "--fine-tune-micro-batch-size=4",
    "--fine-tune-gradient-accumulation=2",
    "--fine-tune-first-trainable-layer=layer2",
]
Digests = tuple[str, str, str]  # of the training, of its average, of the fine-tuning


def summary(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return record


def digests(run: Path) -> Digests:
    """The digests of a complete run."""
    first, tuned = summary(run), summary(run / "fine-tune")
    assert (first["exit_reason"], first["fine_tune"]["exit_reason"]) == ("done", "done")
    assert first["fine_tune"]["weights_sha256"] == tuned["weights_sha256"]
    return first["weights_sha256"], first["averaged"]["weights_sha256"], tuned["weights_sha256"]


def read_records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def single_process_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("single") / "run"
    result = convoy("train", *HALF_RES_OPTIONS, "--validation-mode=after", "--output", run)
    assert (result.code, result.err) == (0, "")
    return run


def copy_of(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "run"))


def test_both_phases_are_runs_and_the_first_reports_the_second(
    single_process_run: Path,
) -> None:
    first, tuned = summary(single_process_run), summary(single_process_run / "fine-tune")
    reports = read_records(single_process_run / "fine-tune/metrics.jsonl")
    events = read_records(single_process_run / "fine-tune/events.jsonl")
    (notice,) = [event["text"] for event in events if event.get("kind") == "init"]

    assert (first["updates"], tuned["updates"], tuned["images"]) == (6, 24, 192)
    assert first["fine_tune"] == {
        "path": "fine-tune",
        "exit_reason": "done",
        **{key: tuned[key] for key in ("weights_sha256", "top1", "top5", "updates", "epochs")},
    }
    assert first["averaged"]["weights_sha256"] in notice
    assert [reports[0]["learning_rate"] < 0.05, reports[-1]["epoch"]] == [True, 3.0]
    assert [
        record["epoch"]
        for record in read_records(single_process_run / "fine-tune/validation.jsonl")
    ] == [3.0]
    assert not any(event.get("kind") == "no_effect" for event in events)


def test_the_second_phase_is_the_run_that_its_configuration_describes(
    single_process_run: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    config = single_process_run / "fine-tune/config.yaml"
    result = convoy("train", "--config-path", config, "--output", again)

    assert (result.code, result.err) == (0, "")
    assert (
        summary(again)["weights_sha256"]
        == summary(single_process_run / "fine-tune")["weights_sha256"]
    )
    assert summary(again)["top1"] == summary(single_process_run / "fine-tune")["top1"]


def test_training_sees_smaller_images_than_validation(
    single_process_run: Path, tmp_path: Path
) -> None:
    small = [
        item for item in HALF_RES_OPTIONS if "half-res" not in item and "fine-tune" not in item
    ]
    words = ("--image-size=10", "--output", tmp_path / "small")
    assert convoy("train", *small, *words).code == 0
    (validation,) = read_records(single_process_run / "validation.jsonl")
    result = convoy("validate", single_process_run / "checkpoints/update-6", "--json")

    assert (
        summary(tmp_path / "small")["weights_sha256"]
        == summary(single_process_run)["weights_sha256"]
    )
    assert json.loads(result.out)["top1"] == validation["top1"]
    assert json.loads(result.out)["loss"] == pytest.approx(validation["loss"], rel=1e-6)


def test_the_closing_lines_show_both_phases(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = convoy("train", *HALF_RES_OPTIONS, "--stop-after=8", "--output", run)
    lines = result.out.splitlines()

    assert result.code == 75
    assert "fine-tuned: 2 updates, 0.1667 epochs, fine-tune (stopped: --stop-after)" in lines
    assert lines[-1] == f"next: convoy resume {run}"
    assert any(line.startswith("epoch 2/3  update 2/24") for line in lines)


@pytest.mark.parametrize("stop", [2, 3, 6, 7, 12, 19], ids="after {}".format)
def test_a_run_stopped_anywhere_resumes_to_the_same_weights(
    single_process_run: Path, tmp_path: Path, stop: int
) -> None:
    run = tmp_path / "run"
    stopped = convoy("train", *HALF_RES_OPTIONS, f"--stop-after={stop}", "--output", run)
    pending = summary(run)["fine_tune"]["exit_reason"]
    resumed = convoy("resume", run)

    assert (stopped.code, resumed.code) == (75, 0), resumed.err
    assert pending == ("pending" if stop < 6 else "limit")
    assert digests(run) == digests(single_process_run)


def test_a_stop_does_not_change_the_average_with_few_checkpoints(tmp_path: Path) -> None:
    words = ("--keep-last=2", "--output")
    assert convoy("train", *HALF_RES_OPTIONS, *words, tmp_path / "reference").code == 0
    assert convoy("train", *HALF_RES_OPTIONS, "--stop-after=5", *words, tmp_path / "run").code == 75
    assert convoy("resume", tmp_path / "run").code == 0

    assert digests(tmp_path / "run") == digests(tmp_path / "reference")


@pytest.mark.processes
@pytest.mark.parametrize("update", [6, 8, 14])
def test_a_run_killed_anywhere_resumes_to_the_same_weights(tmp_path: Path, update: int) -> None:
    """At the end of the first phase; in the second before and after its first checkpoint."""
    words = [*HALF_RES_OPTIONS, "--ckpts-per-epoch=1"] if update == 8 else HALF_RES_OPTIONS
    reference, run = tmp_path / "reference", tmp_path / "run"
    assert convoy("train", *words, "--output", reference).code == 0
    faults = {"CONVOY_TEST_FAULTS": f"kill@{update}"}
    killed = convoy_process("train", *words, "--output", run, scratch=tmp_path, env=faults)
    resumed = convoy("resume", run)
    reports = [record["update"] for record in read_records(run / "fine-tune/metrics.jsonl")]

    assert (killed.code, resumed.code) == (-9, 0), resumed.err
    assert digests(run) == digests(reference)
    assert reports == sorted(set(reports))  # nothing is reported twice


def test_a_run_that_ended_between_the_phases_resumes_with_the_second(
    single_process_run: Path, tmp_path: Path
) -> None:
    run = copy_of(single_process_run, tmp_path)  # its average is in the copy
    shutil.rmtree(run / "fine-tune")
    resumed = convoy("resume", run)

    assert resumed.code == 0, resumed.err
    assert digests(run) == digests(single_process_run)


def test_a_run_that_was_moved_resumes(single_process_run: Path, tmp_path: Path) -> None:
    assert (
        convoy("train", *HALF_RES_OPTIONS, "--stop-after=9", "--output", tmp_path / "old").code
        == 75
    )
    (tmp_path / "old").rename(tmp_path / "new")
    resumed = convoy("resume", tmp_path / "new")

    assert resumed.code == 0, resumed.err
    assert digests(tmp_path / "new") == digests(single_process_run)


def test_a_complete_run_is_not_changed(single_process_run: Path) -> None:
    before = {
        path: path.stat().st_mtime_ns for path in single_process_run.rglob("*") if path.is_file()
    }
    result = convoy("resume", single_process_run)
    after = {
        path: path.stat().st_mtime_ns for path in single_process_run.rglob("*") if path.is_file()
    }

    assert result.code == 0
    assert result.out.startswith("the run is already complete; nothing to do\n")
    assert {path.name for path in before if before[path] != after[path]} <= {".lock"}


def test_the_second_phase_can_be_resumed_by_its_own_folder(
    single_process_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert convoy("train", *HALF_RES_OPTIONS, "--stop-after=9", "--output", run).code == 75
    assert convoy("resume", run / "fine-tune").code == 0
    result = convoy("resume", run)  # updates the summary of the first phase

    assert result.code == 0
    assert digests(run) == digests(single_process_run)


def test_a_checkpoint_of_the_second_phase_can_be_resumed(
    single_process_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert convoy("train", *HALF_RES_OPTIONS, "--stop-after=20", "--output", run).code == 75
    result = convoy("resume", run, "--checkpoint", run / "fine-tune/checkpoints/update-6")

    assert result.code == 0, result.err
    assert "resuming after update 6 of 24" in result.out
    assert digests(run) == digests(single_process_run)


@pytest.mark.processes
@pytest.mark.parametrize(
    "layout",
    [
        ("--replicas=2", "--gradient-accumulation=1", "--fine-tune-gradient-accumulation=1"),
        pytest.param(("--shards=2",), marks=pytest.mark.evidence),
        ("--pipeline-splits=layer2/0/bn1",),  # the second stage has no frozen layers
    ],
    ids=" ".join,
)
def test_every_layout_gives_the_bits_of_one_process(
    single_process_run: Path, tmp_path: Path, layout: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    words = ("--validation-mode=after", *layout, "--output", run)
    result = convoy("train", *HALF_RES_OPTIONS, *words)
    scores = [
        [item[key] for key in ("top1", "top5")]
        for item in (summary(run), summary(single_process_run))
    ]

    assert (result.code, result.err) == (0, "")
    assert digests(run) == digests(single_process_run)
    assert scores[0] == scores[1]
    assert summary(run)["fine_tune"]["top1"] == summary(single_process_run)["fine_tune"]["top1"]


@pytest.mark.processes
@pytest.mark.parametrize(
    "stop",
    [
        *(pytest.param(stop, marks=pytest.mark.evidence) for stop in (4, 6)),
        15,  # in the second phase
    ],
)
def test_a_stopped_run_resumes_in_another_layout(
    single_process_run: Path, tmp_path: Path, stop: int
) -> None:
    run = tmp_path / "run"
    first = ("--shards=2", f"--stop-after={stop}", "--output", run)
    second = ("--replicas=2", "--gradient-accumulation=1", "--fine-tune-gradient-accumulation=1")
    stopped = convoy("train", *HALF_RES_OPTIONS, *first)
    refused = convoy("resume", run, "--shards=1", *second[:2])
    resumed = convoy("resume", run, "--shards=1", *second)

    assert (stopped.code, resumed.code) == (75, 0), resumed.err
    assert refused.code == 2
    assert "--fine-tune-gradient-accumulation × --replicas was 2, now 4" in refused.err
    assert digests(run) == digests(single_process_run)


@pytest.mark.processes
@pytest.mark.parametrize("layout", [(), ("--shards=2",)], ids=["single", "--shards=2"])
def test_a_signal_before_averaging_ends_all_processes(
    single_process_run: Path, tmp_path: Path, layout: tuple[str, ...]
) -> None:
    run, faults = tmp_path / "run", {"CONVOY_TEST_FAULTS": "term@6"}
    words = ("train", *HALF_RES_OPTIONS, *layout, "--output", run)
    stopped = convoy_process(*words, scratch=tmp_path, env=faults)
    resumed = convoy("resume", run)

    assert (stopped.code, stopped.err, resumed.code) == (75, "", 0)
    assert digests(run) == digests(single_process_run)


def test_validate_scores_the_checkpoints_of_both_phases(single_process_run: Path) -> None:
    rows = json.loads(convoy("validate", single_process_run, "--json").out)
    paths = [Path(row["checkpoint"]).relative_to(single_process_run) for row in rows]

    assert [str(path) for path in paths] == [
        "checkpoints/update-3",
        "checkpoints/update-6",
        summary(single_process_run)["averaged"]["path"],
        *(f"fine-tune/checkpoints/update-{update}" for update in (6, 12, 18, 24)),
    ]
    assert [rows[1]["top1"], rows[2]["top1"], rows[-1]["top1"]] == [
        summary(single_process_run)["top1"],
        summary(single_process_run)["averaged"]["top1"],
        summary(single_process_run)["fine_tune"]["top1"],
    ]
    assert [row["epoch"] for row in rows] == [0.5, 1, 1, 1.5, 2, 2.5, 3]


def test_init_path_of_a_run_uses_its_fine_tuned_weights(
    single_process_run: Path, tmp_path: Path
) -> None:
    words = ("--image-size=16", "--epoch=1", "--lr=0", "--init-path", single_process_run)
    result = convoy("train", *COMMON_OPTIONS, *words, "--output", tmp_path / "run")

    assert (
        f"initial weights: {single_process_run / 'fine-tune/checkpoints/update-24'}, update 24"
        in result.out
    )


def test_fine_tuning_from_other_weights_is_refused(
    single_process_run: Path, tmp_path: Path
) -> None:
    run = copy_of(single_process_run, tmp_path)
    words = ("--checkpoint", run / "checkpoints/update-3", "--lr=0.01", "--override")
    result = convoy("resume", run, *words)

    assert result.code == 4
    assert f"{run / 'fine-tune'} was started from different weights (sha256 " in result.err
    shutil.move(run / "fine-tune", tmp_path / "away")
    assert convoy("resume", run).code == 0


def test_a_passed_stop_is_refused_with_the_updates_of_both_phases(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert convoy("train", *HALF_RES_OPTIONS, "--stop-after=9", "--output", run).code == 75
    result = convoy("resume", run, "--stop-after=8")

    assert (result.code, result.err) == (
        2,
        "convoy: --stop-after 8 must be greater than the 9 updates already done: "
        "6 of training and 3 of fine-tuning\n",
    )


def test_an_impossible_second_phase_is_refused_before_the_first(tmp_path: Path) -> None:
    words = ("--fine-tune-first-trainable-layer=layer9", "--output", tmp_path / "run")
    result = convoy("train", *HALF_RES_OPTIONS, *words)

    assert result.code == 2
    assert result.err.startswith(
        "convoy: fine-tuning: --fine-tune-first-trainable-layer 'layer9' is"
    )
    assert not (tmp_path / "run").exists()


def test_too_few_samples_for_the_second_phase_are_refused_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_few_samples(data: DataConfig, network: NetworkPlan, split: Split) -> ShapesSource:
        return ShapesSource(20, network.image_size, data.seed, split)

    monkeypatch.setattr("convoy.run.phase.open_source", open_few_samples)
    words = ("--fine-tune-micro-batch-size=16", "--output", tmp_path / "run")
    result = convoy("train", *HALF_RES_OPTIONS, *words)

    assert result.code == 2
    assert result.err.startswith(
        "convoy: fine-tuning: one update needs 32 samples (micro-batch size 16"
    )
    assert not (tmp_path / "run").exists()


def test_a_complete_run_without_an_average_has_nothing_to_fine_tune(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [
        item for item in HALF_RES_OPTIONS if "half-res" not in item and "weight-avg" not in item
    ]
    assert convoy("train", *words, "--output", run).code == 0
    requested = ("--half-res-training", "--weight-avg-strategy=mean", "--override")
    result = convoy("resume", run, *requested)

    assert result.code == 4
    assert result.err.startswith(f"convoy: {run} has no average to fine-tune")


def test_epochs_before_shift_the_epoch_numbers_and_the_data_order(tmp_path: Path) -> None:
    for name, words in {"first": [], "later": ["--epochs-before=1"]}.items():
        words += ["--image-size=12", "--epoch=1", "--output", str(tmp_path / name)]
        assert convoy("train", *COMMON_OPTIONS, *words).code == 0
    first, later = (read_records(tmp_path / name / "metrics.jsonl") for name in ("first", "later"))

    assert [item["epoch"] + 1 for item in first] == [item["epoch"] for item in later]
    assert [item["learning_rate"] for item in first] == [item["learning_rate"] for item in later]
    assert first[0]["loss"] != later[0]["loss"]


@pytest.mark.evidence
def test_fine_tuning_improves_accuracy_at_full_resolution(tmp_path: Path) -> None:
    words = [
        *("--half-res-training", "--weight-avg-strategy=mean", "--weight-avg-n=1"),
        *("--fine-tune-epoch=1", "--fine-tune-lr=0.02", "--fine-tune-micro-batch-size=32"),
        *("--fine-tune-first-trainable-layer=layer3", "--progress=none"),
    ]
    result = convoy("train", *words, "--output", tmp_path / "run")
    record = summary(tmp_path / "run")
    before, after = record["averaged"]["top1"], record["fine_tune"]["top1"]
    print(f"\ntop-1 at full resolution: {before:.3f} before, {after:.3f} after fine-tuning")

    assert result.code == 0
    assert after > 0.9 > before


def test_prove_refuses_two_phases() -> None:
    words = [
        item for item in HALF_RES_OPTIONS if "--progress" not in item and "--epoch" not in item
    ]
    result = convoy("prove", *words)

    assert result.code == 2
    assert (
        result.err
        == "convoy: --half-res-training cannot be set: `convoy prove` trains in one phase\n"
    )
