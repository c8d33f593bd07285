"""A run that was stopped after any update resumes bit-exactly."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import TINY, CommandResult, convoy, convoy_process

UPDATES = 12
SWEEP = pytest.mark.evidence  # every update; the normal suite has only typical ones


def summary(run: Path) -> dict[str, object]:
    return json.loads((run / "summary.json").read_text())


def metrics(run: Path) -> list[dict[str, object]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    untimed = {"update", "epoch", "loss", "accuracy", "learning_rate"}
    return [{k: v for k, v in json.loads(line).items() if k in untimed} for line in lines]


@pytest.fixture(scope="module")
def reference_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("reference") / "run"
    result = convoy("train", *TINY, "--output", run)
    assert result.code == 0, result.err
    return run


def assert_same(run: Path, reference_run: Path, result: CommandResult) -> None:
    assert result.code == 0, result.err
    assert summary(run)["weights_sha256"] == summary(reference_run)["weights_sha256"]
    assert metrics(run) == metrics(reference_run)


def updates_to_stop_after(*normal: int, last: int = UPDATES) -> list[Any]:
    rest = [update for update in range(1, last + 1) if update not in normal]
    return [*normal, *(pytest.param(update, marks=SWEEP) for update in rest)]


# The first update, one in the middle of an epoch, the end of an epoch, the one before the last.
@pytest.mark.parametrize("update", updates_to_stop_after(1, 4, 6, 11, last=UPDATES - 1))
def test_a_run_stopped_by_a_limit_resumes_bit_exactly(
    tmp_path: Path, reference_run: Path, update: int
) -> None:
    run = tmp_path / "run"
    stopped = convoy("train", *TINY, "--output", run, "--stop-after", str(update))
    assert stopped.code == 75
    assert summary(run)["updates"] == update

    assert_same(run, reference_run, convoy("resume", run))


@pytest.mark.processes
@pytest.mark.parametrize("update", updates_to_stop_after(5, UPDATES))
def test_a_run_stopped_by_sigterm_resumes_bit_exactly(
    tmp_path: Path, reference_run: Path, update: int
) -> None:
    run = tmp_path / "run"
    faults = {"CONVOY_TEST_FAULTS": f"term@{update}"}
    stopped = convoy_process("train", *TINY, "--output", run, scratch=tmp_path, env=faults)
    assert stopped.code == (75 if update < UPDATES else 0), stopped.err
    assert summary(run)["updates"] == update  # the current update is finished and saved

    assert_same(run, reference_run, convoy("resume", run))


@pytest.mark.processes
@pytest.mark.parametrize("update", updates_to_stop_after(1, 7))  # 1: before any checkpoint
def test_a_killed_run_resumes_bit_exactly(tmp_path: Path, reference_run: Path, update: int) -> None:
    run = tmp_path / "run"
    faults = {"CONVOY_TEST_FAULTS": f"kill@{update}"}
    words = ("train", *TINY, "--output", run, "--ckpts-per-epoch", "6")
    killed = convoy_process(*words, scratch=tmp_path, env=faults)
    assert killed.code == -9

    resumed = convoy("resume", run)
    if resumed.code == 4:  # killed before the first checkpoint was complete: start again
        resumed = convoy("train", *TINY, "--output", tmp_path / "again")
        run = tmp_path / "again"
    assert_same(run, reference_run, resumed)


def test_resuming_three_times_within_one_epoch_changes_nothing(
    tmp_path: Path, reference_run: Path
) -> None:
    run = tmp_path / "run"
    assert convoy("train", *TINY, "--output", run, "--stop-after", "1").code == 75
    for update in (2, 4, 5):
        assert convoy("resume", run, "--stop-after", str(update)).code == 75

    assert_same(run, reference_run, convoy("resume", run))


def test_the_number_of_loader_workers_may_change_on_resume(
    tmp_path: Path, reference_run: Path
) -> None:
    run = tmp_path / "run"
    assert convoy("train", *TINY, "--output", run, "--stop-after", "3").code == 75
    words = ("resume", run, "--dataloader-worker", "2", "--stop-after", "8")
    assert convoy(*words).code == 75

    assert_same(run, reference_run, convoy("resume", run, "--dataloader-worker", "4"))


def test_resuming_a_complete_run_changes_no_file(reference_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(reference_run, tmp_path / "run")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"}
    result = convoy("resume", run)

    assert result.code == 0
    assert "already complete" in result.out
    assert {p: p.read_bytes() for p in before} == before


def test_a_changed_learning_rate_is_refused_without_override(tmp_path: Path) -> None:
    run = tmp_path / "run"
    convoy("train", *TINY, "--output", run, "--stop-after", "3")
    refused = convoy("resume", run, "--lr", "0.01")
    overridden = convoy("resume", run, "--lr", "0.01", "--override")

    assert refused.code == 2
    assert "--lr was 0.02, now 0.01" in refused.err
    assert overridden.code == 0
