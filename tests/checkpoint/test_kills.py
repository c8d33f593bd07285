"""SIGKILL while saving: a valid checkpoint always exists, and no partial one is listed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import convoy

TESTS = Path(__file__).parents[1]
PATH = os.pathsep.join(map(str, (Path(convoy.__file__).parents[1], TESTS)))


def run(*args: object) -> dict:
    """Run `support.kill_saver`, which forks, in a separate process."""
    result = subprocess.run(
        [sys.executable, "-m", "support.kill_saver", *map(str, args)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.processes
def test_a_kill_before_any_disk_write_leaves_two_valid_checkpoints(tmp_path: Path):
    report = run("calls", tmp_path)

    assert report["problems"] == []
    assert report["kills"] > 25


@pytest.mark.processes
def test_40_random_kills_each_leave_two_valid_checkpoints(tmp_path: Path):
    report = run("moments", tmp_path, 40)

    assert report["problems"] == []
    assert report["interrupted"] > 0


@pytest.mark.processes
@pytest.mark.evidence
def test_200_random_kills_each_leave_two_valid_checkpoints(tmp_path: Path):
    report = run("moments", tmp_path, 200)

    assert report["problems"] == []
    assert report["interrupted"] > 0
