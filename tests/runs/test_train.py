"""Determinism and files of `convoy train`."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.run_convoy import TINY, convoy

FILES = {
    "config.yaml",
    "plan.json",
    "metrics.jsonl",
    "events.jsonl",
    "log.txt",
    "checkpoints",
    "summary.json",
}


def digest(run: Path, *words: str) -> str:
    result = convoy("train", *TINY, "--output", run, *words)
    assert result.code == 0, result.err
    return json.loads((run / "summary.json").read_text())["weights_sha256"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest(tmp_path_factory.mktemp("reference") / "run")


def test_the_same_command_gives_the_same_bits(tmp_path: Path, reference: str) -> None:
    assert digest(tmp_path / "run") == reference


@pytest.mark.parametrize("workers", ["1", "2", "4"])
def test_the_number_of_workers_does_not_change_any_bit(
    tmp_path: Path, reference: str, workers: str
) -> None:
    words = ("--dataloader-worker", workers, "--prefetch-depth", workers)

    assert digest(tmp_path / "run", *words) == reference


def test_reports_checkpoints_and_validation_do_not_change_any_bit(
    tmp_path: Path, reference: str
) -> None:
    often = ("--logs-per-epoch=6", "--ckpts-per-epoch=3", "--validation-mode=during")

    assert digest(tmp_path / "run", *often) == reference


def test_another_seed_gives_different_weights(tmp_path: Path, reference: str) -> None:
    assert digest(tmp_path / "run", "--seed", "1") != reference


def test_gradient_accumulation_changes_the_weights(tmp_path: Path, reference: str) -> None:
    # Batch norm uses micro-batches, so their size changes the training.
    words = ("--micro-batch-size", "16", "--gradient-accumulation", "1")

    assert digest(tmp_path / "run", *words) != reference


def test_the_run_folder_has_the_documented_files(tmp_path: Path) -> None:
    run = tmp_path / "run"
    digest(run, "--validation-mode", "after", "--logs-per-epoch", "3")
    summary = json.loads((run / "summary.json").read_text())
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    assert {path.name for path in run.iterdir()} - {".lock"} == FILES | {"validation.jsonl"}
    assert [line["update"] for line in metrics] == [2, 4, 6, 8, 10, 12]
    assert summary["updates"] == 12 and summary["epochs"] == 2 and summary["images"] == 192
    assert summary["exit_reason"] == "done" and 0 <= summary["top1"] <= summary["top5"] <= 1
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "update-12",
        "update-6",
    ]


def test_no_checkpoint_is_written_if_saving_is_off(tmp_path: Path) -> None:
    digest(tmp_path / "run", "--ckpts-per-epoch", "0")

    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    digest(tmp_path / "run", "--ckpts-per-epoch", "6", "--keep-last", "2")
    saved = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}

    assert saved == {"update-11", "update-12"}


def test_a_folder_that_contains_a_run_is_not_used_again(tmp_path: Path) -> None:
    digest(tmp_path / "run")
    result = convoy("train", *TINY, "--output", tmp_path / "run")

    assert result.code == 2
    assert "convoy resume" in result.err


@pytest.mark.parametrize("data", ["generated", "synthetic"])
def test_random_data_trains_too(tmp_path: Path, data: str) -> None:
    words = ("--data", data, "--num-classes", "7", "--validation-mode", "after")
    result = convoy("train", *TINY, *words, "--epoch", "0.5", "--output", tmp_path / "run")

    assert result.code == 0, result.err


@pytest.mark.parametrize("where", ["host", "device", "none"])
def test_normalization_works_in_every_location(tmp_path: Path, where: str) -> None:
    words = ("--normalization-location", where, "--epoch", "0.4")
    result = convoy("train", *TINY, *words, "--output", tmp_path / "run")

    assert result.code == 0, result.err


@pytest.mark.parametrize("norm", ["group", "none"])
def test_every_norm_trains(tmp_path: Path, norm: str) -> None:
    words = ("--norm-type", norm, "--epoch", "0.4", "--lr", "0.001")
    result = convoy("train", *TINY, *words, "--output", tmp_path / "run")

    assert result.code == 0, result.err


@pytest.mark.parametrize("schedule", ["step", "cosine", "exponential", "polynomial"])
def test_every_schedule_trains(tmp_path: Path, schedule: str) -> None:
    words = ("--lr-schedule", schedule, "--lr-epoch-decay", "1", "--warmup-epoch", "0.5")
    result = convoy("train", *TINY, *words, "--output", tmp_path / "run")

    assert result.code == 0, result.err


def test_a_loss_that_is_not_finite_stops_the_run_with_code_5(tmp_path: Path) -> None:
    result = convoy("train", *TINY, "--lr", "1e30", "--output", tmp_path / "run")
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    weights = load_file(saved / "model.safetensors")

    assert result.code == 5
    assert "lower --lr" in result.err
    assert all(bool(weight.isfinite().all()) for weight in weights.values())


def no_effect_notices(run: Path) -> list[str]:
    """The notices about options without effect, in the order of events."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event["text"] for event in events if event.get("kind") == "no_effect"]


def test_options_without_effect_are_named_once(tmp_path: Path, reference: str) -> None:
    run = tmp_path / "run"
    words = ("--lr-decay", "0.5", "--reduction=fast", "--prefetch-depth", "7")
    result = convoy("train", *TINY, *words, "--output", run)
    reported = [
        "--prefetch-depth has no effect with --num-workers 0",
        "--lr-decay has no effect with --lr-schedule cosine",
        "--reduction has no effect with one replica",
    ]

    assert result.code == 0, result.err
    assert no_effect_notices(run) == reported
    assert all(result.out.count(text) == 1 for text in reported)
    assert all((run / "log.txt").read_text().count(text) == 1 for text in reported)
    assert json.loads((run / "summary.json").read_text())["weights_sha256"] == reference


def test_a_run_without_ineffective_options_reports_nothing(tmp_path: Path) -> None:
    digest(tmp_path / "run", "--validation-mode", "after", "--valid-batch-size", "9")

    assert no_effect_notices(tmp_path / "run") == []


def test_a_resumed_run_reports_only_options_typed_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = "--lr-decay has no effect with --lr-schedule cosine"
    second = "--prefetch-depth has no effect with --num-workers 0"
    started = convoy("train", *TINY, "--output", run, "--lr-decay", "0.3", "--stop-after", "5")
    assert (started.code, no_effect_notices(run)) == (75, [first])
    resumed = convoy("resume", run, "--stop-after", "8")
    assert (resumed.code, no_effect_notices(run)) == (75, [first])
    finished = convoy("resume", run, "--prefetch-depth", "7")
    plan = json.loads((run / "plan.json").read_text())

    assert (finished.code, no_effect_notices(run)) == (0, [first, second])
    assert [item["reason"] for item in plan["without_effect"]] == [second, first]


def test_a_run_config_used_as_a_file_reports_only_chosen_options(tmp_path: Path) -> None:
    digest(tmp_path / "first", "--lr-decay", "0.3")
    config = tmp_path / "first" / "config.yaml"
    result = convoy("train", "--config-path", config, "--output", tmp_path / "second")

    assert result.code == 0, result.err
    assert no_effect_notices(tmp_path / "second") == [
        "--lr-decay has no effect with --lr-schedule cosine"
    ]
