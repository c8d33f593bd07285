"""Runs with --init-path, in every layout."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.run_convoy import TINY, convoy


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run."""
    run = tmp_path_factory.mktemp("before") / "run"
    result = convoy("train", *TINY, "--stop-after=7", "--output", run)
    assert result.code == 75, result.err
    return run


def started_run(run: Path, before: Path, *words: str) -> dict[str, Any]:
    result = convoy("train", *TINY, "--init-path", before, *words, "--output", run)
    assert (result.code, result.err) == (0, "")
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def weights(run: Path, update: int) -> dict[str, torch.Tensor]:
    found = load_file(run / "checkpoints" / f"update-{update}" / "model.safetensors")
    return {name: item for name, item in found.items() if ".running_" not in name}


def test_a_rate_of_zero_keeps_the_initial_weights(tmp_path: Path, before: Path) -> None:
    summary = started_run(tmp_path / "run", before, "--lr=0")
    final, initial = weights(tmp_path / "run", 12), weights(before, 7)

    assert summary["updates"] == 12
    assert all(torch.equal(final[name], initial[name]) for name in initial)


def test_the_source_of_the_weights_is_recorded(tmp_path: Path, before: Path) -> None:
    run = tmp_path / "run"
    summary = started_run(run, before)
    digest = json.loads((before / "summary.json").read_text())["weights_sha256"]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]

    assert summary["init_path"] == str(before)
    assert [event["kind"] for event in events if event["event"] == "noticed"] == ["init"]
    assert f"update-7, update 7, sha256 {digest}" in events[0]["text"]
    assert (events[1]["event"], events[1]["update"]) == ("began", 0)


@pytest.mark.processes
def test_every_layout_starts_with_the_same_weights(tmp_path: Path, before: Path) -> None:
    layouts = {
        "single": ("--gradient-accumulation=2",),
        "stages": ("--shards=2",),
        "replicas": ("--replicas=2", "--gradient-accumulation=1"),
    }
    digests = {
        started_run(tmp_path / name, before, *words)["weights_sha256"]
        for name, words in layouts.items()
    }
    assert convoy("train", *TINY, "--output", tmp_path / "fresh").code == 0
    fresh = json.loads((tmp_path / "fresh" / "summary.json").read_text())["weights_sha256"]

    assert len(digests) == 1
    assert fresh not in digests


def test_a_run_resumes_without_its_initial_weights(tmp_path: Path, before: Path) -> None:
    expected = started_run(tmp_path / "reference", before)["weights_sha256"]
    moved = (tmp_path / "moved").resolve()
    run = tmp_path / "run"
    moved.symlink_to(before)
    words = ("--init-path", moved, "--stop-after=5", "--output", run)
    assert convoy("train", *TINY, *words).code == 75
    moved.unlink()
    resumed = convoy("resume", run)
    summary = json.loads((run / "summary.json").read_text())

    assert resumed.code == 0, resumed.err
    assert (summary["weights_sha256"], summary["init_path"]) == (expected, str(moved))


def test_weights_that_do_not_fit_leave_no_folder_behind(tmp_path: Path, before: Path) -> None:
    words = ("--model=resnet14", "--init-path", before, "--output", tmp_path / "run")
    result = convoy("train", *TINY, *words)

    assert result.code == 4
    assert result.err.startswith(f"convoy: --init-path {before}: the checkpoint does not match")
    assert result.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
