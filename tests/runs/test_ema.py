"""Runs with an EMA: how it is saved, validated and used."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.run_convoy import TINY, convoy

DECAY = 0.8
# Six updates of four micro-batches.
WORDS = [item for item in TINY if not item.startswith(("--gradient", "--validation", "--epoch"))]
WORDS += ["--updates=6", "--gradient-accumulation=4", f"--ema-decay={DECAY}"]
VALIDATED = "--validation-mode=during"
EMA_PATH = Path("checkpoints") / "averaged" / f"ema-{DECAY}" / "update-6"

AVERAGES = "averages.safetensors"


def summary(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return record


def trained(run: Path, *words: str | Path) -> dict[str, Any]:
    result = convoy("train", *WORDS, *words, "--output", run)
    assert (result.code, result.err) == (0, "")
    return summary(run)


def tensors(checkpoint: Path, part: str = "model") -> dict[str, torch.Tensor]:
    return load_file(checkpoint / f"{part}.safetensors")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three updates per epoch that saves each of them."""
    path = tmp_path_factory.mktemp("averaged") / "run"
    trained(path, "--ckpts-per-epoch=3", VALIDATED)
    return path


def test_the_ema_covers_all_updates_in_float64(run: Path) -> None:
    expected: dict[str, np.ndarray] = {}
    for update in range(1, 7):
        for name, item in tensors(run / "checkpoints" / f"update-{update}").items():
            now = item.double().numpy()
            before = expected.get(name, now)
            expected[name] = DECAY * before + (1 - DECAY) * now
        found = tensors(run / "checkpoints" / f"update-{update}", "averages")

        assert found.keys() == expected.keys()
        for name, item in found.items():
            assert item.dtype == torch.float32
            np.testing.assert_allclose(item.double().numpy(), expected[name], rtol=1e-5, atol=1e-6)
    assert any("running_var" in name for name in expected)


def test_the_last_ema_is_saved_as_a_separate_checkpoint(run: Path) -> None:
    last, separate = tensors(run / "checkpoints" / "update-6", "averages"), tensors(run / EMA_PATH)

    assert last.keys() == separate.keys()
    assert all(torch.equal(last[name], item) for name, item in separate.items())
    assert summary(run)["live_average"]["path"] == str(EMA_PATH)


def test_a_run_validates_the_ema_like_convoy_validate(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "validation.jsonl").read_text().splitlines()]
    result = convoy("validate", run, "--json")
    rows = {row["checkpoint"]: row for row in json.loads(result.out)}
    average, weights = rows[str(run / EMA_PATH)], rows[str(run / "checkpoints" / "update-6")]
    reported = summary(run)["live_average"]

    assert [line["update"] for line in lines] == [3, 6]
    assert lines[-1]["average_loss"] == pytest.approx(average["loss"], rel=1e-6)
    assert lines[-1]["average_top5"] == average["top5"]
    assert lines[-1]["loss"] == pytest.approx(weights["loss"], rel=1e-6)
    assert average["loss"] != weights["loss"]
    assert reported["weights_sha256"] == average["weights_sha256"]
    assert reported["top1"] == average["top1"]


def test_an_ema_does_not_change_the_training(run: Path, tmp_path: Path) -> None:
    other = trained(tmp_path / "run", "--ema-decay=0", "--ckpts-per-epoch=3", VALIDATED)

    assert other["weights_sha256"] == summary(run)["weights_sha256"]
    assert other["live_average"] is None
    assert not (tmp_path / "run" / EMA_PATH).exists()
    assert not (tmp_path / "run" / "checkpoints" / "update-6" / AVERAGES).exists()


LAYOUTS = {
    "recomputed": ("--enable-recompute",),
    "two stages": ("--shards=2",),
    "two replicas": ("--replicas=2", "--gradient-accumulation=2"),
    "two replicas with sharded state": (
        "--replicas=2",
        "--gradient-accumulation=2",
        "--enable-optimizer-rts",
        "--offload-optimizer",
    ),
    "two replicas of two stages": (
        "--replicas=2",
        "--gradient-accumulation=2",
        "--shards=2",
        "--enable-optimizer-rts",
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize(
    "layout",
    [
        *("recomputed", "two replicas of two stages"),
        *(
            pytest.param(layout, marks=pytest.mark.evidence)
            for layout in ("two stages", "two replicas", "two replicas with sharded state")
        ),
    ],
)
def test_every_layout_has_a_bit_identical_ema(layout: str, run: Path, tmp_path: Path) -> None:
    actual, expected = trained(tmp_path / "run", *LAYOUTS[layout], VALIDATED), summary(run)

    assert actual["weights_sha256"] == expected["weights_sha256"]
    assert actual["live_average"] == expected["live_average"]


@pytest.mark.processes
@pytest.mark.parametrize(
    "words", [(), ("--replicas=2", "--gradient-accumulation=2", "--enable-optimizer-rts")]
)
def test_a_stopped_and_resumed_run_has_the_same_ema(
    words: tuple[str, ...], run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    stopped = convoy("train", *WORDS, VALIDATED, "--stop-after=2", "--output", path)
    resumed = convoy("resume", path, *words)

    assert (stopped.code, resumed.code) == (75, 0)
    assert summary(path)["live_average"] == summary(run)["live_average"]


def test_an_ema_can_start_in_a_resumed_run(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    convoy("train", *WORDS, "--ema-decay=0", "--stop-after=5", "--output", path)
    result = convoy("resume", path, f"--ema-decay={DECAY}")
    average = tensors(path / EMA_PATH)  # of one update

    assert result.code == 0
    assert all(
        torch.equal(item, average[name])
        for name, item in tensors(path / "checkpoints" / "update-6").items()
    )
    assert summary(path)["weights_sha256"] == summary(run)["weights_sha256"]


def test_an_ema_that_is_disabled_on_resume_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "run"
    convoy("train", *WORDS, "--stop-after=5", "--output", path)
    result = convoy("resume", path, "--ema-decay=0")

    assert result.code == 0
    assert summary(path)["live_average"] is None
    assert not (path / "checkpoints" / "update-6" / AVERAGES).exists()


def test_a_run_can_start_from_an_ema(run: Path, tmp_path: Path) -> None:
    result = convoy(
        "train", *WORDS, "--lr=0", "--init-path", run / EMA_PATH, "--output", tmp_path / "b"
    )
    average, weights = tensors(run / EMA_PATH), tensors(tmp_path / "b" / "checkpoints" / "update-6")

    assert result.code == 0
    assert all(
        torch.equal(weights[name], item) for name, item in average.items() if "run" not in name
    )


def test_an_ema_can_be_exported(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "ema.safetensors"
    result = convoy("export", run / EMA_PATH, "--format", "safetensors", "--output", target)

    assert result.code == 0, result.err
    assert target.is_file()


def test_the_ema_is_only_validated_if_no_checkpoints_are_saved(tmp_path: Path) -> None:
    reported = trained(tmp_path / "run", "--ckpts-per-epoch=0", "--validation-mode=after")
    (line,) = (tmp_path / "run" / "validation.jsonl").read_text().splitlines()

    assert reported["live_average"] is None
    assert "average_top1" in json.loads(line)
    assert not (tmp_path / "run" / "checkpoints" / "averaged").exists()


def test_the_ema_is_reported_at_the_end_and_in_the_log(tmp_path: Path) -> None:
    result = convoy("train", *WORDS, "--validation-mode=after", "--output", tmp_path / "run")
    log = (tmp_path / "run" / "log.txt").read_text()

    assert "\naverage: ema over all updates, top-1 " in result.out
    assert f"average  {EMA_PATH}  ema over all updates  top-1 " in log
    assert "  average  top-1 " in log
