"""Intervals of checkpoints and reports, and the run name."""

import json
from pathlib import Path

import pytest
from support.run_convoy import TINY, convoy

# Ten epochs of one update.
TEN_EPOCHS = [item for item in TINY if not item.startswith(("--samples", "--epoch"))]
TEN_EPOCHS += ["--samples=16", "--epoch=10"]


def saved_updates(run: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in (run / "checkpoints").glob("update-*"))


def reported_updates(run: Path) -> list[int]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["update"] for line in lines]


@pytest.mark.parametrize(
    ("words", "updates"),
    [
        (("--epochs-per-ckpt=4",), [2, 6, 10]),
        (("--checkpoint-save-freq=4", "--ckpt-epochs-offset=3"), [3, 7, 10]),
        (("--ckpt-epochs-offset=8",), [8, 9, 10]),
    ],
)
def test_checkpoints_can_be_epochs_apart(
    tmp_path: Path, words: tuple[str, ...], updates: list[int]
) -> None:
    result = convoy("train", *TEN_EPOCHS, *words, "--output", tmp_path / "run")

    assert result.code == 0, result.err
    assert saved_updates(tmp_path / "run") == updates


def test_a_resumed_run_keeps_its_checkpoint_interval(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("--epochs-per-ckpt=4", "--stop-after=5", "--output", run)
    assert convoy("train", *TEN_EPOCHS, *words).code == 75
    assert convoy("resume", run).code == 0

    assert saved_updates(run) == [2, 5, 6, 10]


def test_reports_can_be_updates_apart(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert (
        convoy("train", *TEN_EPOCHS, "--log-freq=4", "--stop-after=6", "--output", run).code == 75
    )
    config = (run / "config.yaml").read_text()
    assert convoy("resume", run, "--logs-per-epoch=1").code == 0

    assert "logs_per_epoch: null  # command line" in config and "log_freq: 4  #" in config
    assert reported_updates(run) == [4, 7, 8, 9, 10]


@pytest.mark.parametrize(("words", "name"), [((), "resnet8-shapes-b-1"), (("--name=a",), "a-b")])
def test_the_suffix_is_appended_to_the_run_name(
    tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    result = convoy("train", *TEN_EPOCHS, *words, "--log-dir", tmp_path, "--name-suffix=b")

    assert result.code == 0, result.err
    assert [path.name for path in tmp_path.iterdir()] == [name]
