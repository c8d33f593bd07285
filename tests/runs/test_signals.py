"""Signals end a run between two updates, and nothing is lost."""

import json
import signal
import time
from pathlib import Path

import pytest
from running import TINY, Process, convoy, convoy_process

from convoy.checkpoint.store import Store

LONG = (*TINY, "--epoch", "20000", "--logs-per-epoch", "1", "--keep-last", "2")


def wait_for(path: Path, process: Process) -> None:
    """Until the run has written this; it must not end before."""
    deadline = time.monotonic() + 60
    while not path.exists() or not path.stat().st_size:
        assert process.alive, process.wait().err
        assert time.monotonic() < deadline
        time.sleep(0.02)


def started(tmp_path: Path) -> Process:
    process = Process(["train", *LONG, "--output", tmp_path / "run"], tmp_path)
    wait_for(tmp_path / "run" / "metrics.jsonl", process)
    return process


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGINT, 130)]
)
def test_a_signal_saves_and_ends_with_its_code(tmp_path: Path, number: int, code: int) -> None:
    process = started(tmp_path)
    process.send(number)
    said = process.wait()
    run = tmp_path / "run"
    done = json.loads((run / "summary.json").read_text())["updates"]

    assert said.code == code, said.err
    assert (run / "checkpoints" / f"update-{done}" / "MANIFEST.json").exists()
    assert f"convoy resume {run}" in said.out


@pytest.mark.processes
def test_a_second_interrupt_stops_at_once_and_leaves_the_last_checkpoint_intact(
    tmp_path: Path,
) -> None:
    process = started(tmp_path)
    wait_for(tmp_path / "run" / "checkpoints" / "update-6" / "MANIFEST.json", process)
    for _ in range(2000):  # the first asks, the second leaves; more may find nobody
        if not process.alive:
            break
        process.send(signal.SIGINT)
    assert process.wait().code == 130

    done = Store(tmp_path / "run" / "checkpoints").updates()[-1]
    said = convoy("resume", tmp_path / "run", "--stop-after", str(done + 1))
    assert said.code == 75, said.err


@pytest.mark.processes
def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    process = started(tmp_path)
    said = convoy("resume", tmp_path / "run")
    process.send(signal.SIGTERM)
    process.wait()

    assert said.code == 9
    assert str(process.pid) in said.err


@pytest.mark.processes
def test_a_signal_in_the_last_update_changes_nothing(tmp_path: Path) -> None:
    faults = {"CONVOY_TEST_FAULTS": "int@12"}
    run = tmp_path / "run"
    said = convoy_process("train", *TINY, "--output", run, scratch=tmp_path, env=faults)

    assert said.code == 0
    assert json.loads((run / "summary.json").read_text())["exit_reason"] == "done"
