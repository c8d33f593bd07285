"""convoy.validate, average, export and plan: the results of the commands."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import convoy as run_command

import convoy
from convoy.errors import CheckpointError, ConfigError

TINY: dict[str, Any] = {
    "model": "resnet8",
    "image_size": 12,
    "samples": 96,
    "micro_batch_size": 8,
    "epochs": 2,
    "lr": 0.02,
    "threads": 1,
    "progress": "none",
    "validation_mode": "none",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> convoy.Run:
    return convoy.train(output=tmp_path_factory.mktemp("api") / "run", **TINY)


def test_validate_returns_the_scores_that_the_command_prints(run: convoy.Run) -> None:
    scores = convoy.validate(run)

    printed = json.loads(run_command("validate", run.path, "--json").out)
    for score, row in zip(scores, printed, strict=True):
        assert (score.checkpoint, score.top1, score.loss) == (
            row["checkpoint"],
            row["top1"],
            row["loss"],
        )


def test_validate_accepts_one_checkpoint_and_options(run: convoy.Run) -> None:
    (score,) = convoy.validate(run.checkpoints[-1], valid_batch_size=100, latency=True)

    assert score.weights_sha256 == run.summary.weights_sha256
    assert score.latency_ms is not None and score.latency_p99_ms is not None


def test_validate_raises_for_a_damaged_checkpoint(tmp_path: Path) -> None:
    damaged = tmp_path / "update-1"
    damaged.mkdir()
    (damaged / "MANIFEST.json").write_text("{}")

    with pytest.raises(CheckpointError):
        convoy.validate(damaged, model="resnet8", image_size=12)


def test_average_returns_the_new_checkpoint(run: convoy.Run) -> None:
    average = convoy.average(run, weight_avg_n=2, norm_statistics="average")

    assert average.checkpoints == 2 and Path(average.path) in run.checkpoints


def test_export_writes_the_file(tmp_path: Path, run: convoy.Run) -> None:
    exported = convoy.export(run, tmp_path / "net.safetensors", naming="convoy")

    assert exported.file == tmp_path / "net.safetensors"
    assert exported.file.stat().st_size == exported.bytes
    with pytest.raises(ConfigError, match=r"\.onnx"):
        convoy.export(run, tmp_path / "net.pt2", format="onnx")


def test_a_plan_shows_batch_memory_and_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    plan = convoy.plan(model="resnet50", data="generated", shards=4, gradient_accumulation=8)

    assert plan.global_batch_size == 8 * 32
    assert len(plan.memory_bytes) == 4 and len(plan.stage_starts) == 3
    assert plan.values["batch"]["samples_per_update"] == plan.global_batch_size
    assert plan.learning_rate(plan.updates - 1) < plan.learning_rate(plan.updates // 2)
    words = ("--model=resnet50", "--data=generated", "--shards=4", "--gradient-accumulation=8")
    assert str(plan) in run_command("plan", *words).out
