"""SIGKILL while saving: some verified checkpoint is always there, and nothing half is listed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import convoy

SCRIPT = Path(__file__).with_name("kill_saver.py")
ROOT = Path(convoy.__file__).parent.parent


def run(*words: object) -> dict:
    """Run the killing program in a process of its own, for it forks."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.processes
def test_a_kill_before_any_change_on_disk_leaves_two_whole_checkpoints(tmp_path: Path):
    result = run("calls", tmp_path)

    assert result["problems"] == []
    assert result["kills"] > 25


@pytest.mark.processes
def test_40_kills_at_random_moments_leave_two_whole_checkpoints_each_time(tmp_path: Path):
    result = run("moments", tmp_path, 40)

    assert result["problems"] == []
    assert result["interrupted"] > 0


@pytest.mark.processes
@pytest.mark.evidence
def test_200_kills_at_random_moments_leave_two_whole_checkpoints_each_time(tmp_path: Path):
    result = run("moments", tmp_path, 200)

    assert result["problems"] == []
    assert result["interrupted"] > 0
