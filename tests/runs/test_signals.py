"""Signals stop a run between two updates, after a save."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.run_convoy import ENDLESS, TINY, Process, convoy, convoy_process, wait_until

from convoy.checkpoint.store import CheckpointStore

WORDS = [word for word in TINY if not word.startswith("--epoch")]
ENDLESS_RUN = (*WORDS, ENDLESS, "--logs-per-epoch", "1", "--keep-last", "2")


def wait_for(condition: Callable[[], object], process: Process) -> None:
    """Wait until a running process fulfills a condition."""
    wait_until(lambda: condition() or not process.alive)
    assert process.alive, process.wait().err


def started(tmp_path: Path) -> Process:
    process = Process(["train", *ENDLESS_RUN, "--output", tmp_path / "run"], tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size, process)
    return process


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGINT, 130)]
)
def test_a_signal_saves_and_ends_with_its_code(tmp_path: Path, number: int, code: int) -> None:
    process = started(tmp_path)
    process.send(number)
    result = process.wait()
    run = tmp_path / "run"
    done = json.loads((run / "summary.json").read_text())["updates"]

    assert result.code == code, result.err
    assert (run / "checkpoints" / f"update-{done}" / "MANIFEST.json").exists()
    assert f"convoy resume {run}" in result.out


@pytest.mark.processes
def test_a_second_interrupt_stops_at_once_and_leaves_the_last_checkpoint_intact(
    tmp_path: Path,
) -> None:
    process = started(tmp_path)
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    wait_for(store.updates, process)
    while process.alive:  # the first signal requests a stop, the second exits
        process.send(signal.SIGINT)
        time.sleep(0.001)  # pending signals are merged
    assert process.wait().code == 130

    done = store.updates()[-1]
    result = convoy("resume", tmp_path / "run", "--stop-after", str(done + 1))
    assert result.code == 75, result.err


@pytest.mark.processes
def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    process = started(tmp_path)
    result = convoy("resume", tmp_path / "run")
    process.send(signal.SIGTERM)
    process.wait()

    assert result.code == 9
    assert str(process.pid) in result.err


@pytest.mark.processes
def test_a_signal_in_the_last_update_changes_nothing(tmp_path: Path) -> None:
    faults = {"CONVOY_TEST_FAULTS": "int@12"}
    run = tmp_path / "run"
    result = convoy_process("train", *TINY, "--output", run, scratch=tmp_path, env=faults)

    assert result.code == 0
    assert json.loads((run / "summary.json").read_text())["exit_reason"] == "done"
