"""What answers at once loads nothing heavy: the same commands that `benchmarks/start.py` times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HEAVY = ["torch", "numpy", "rich"]
LATER = ["convoy.launch.supervisor", "convoy.plan.plan", "multiprocessing"]  # not for help alone

LOADED = f"""
import contextlib, io, json, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from convoy.cli.main import main
from start import COMMANDS
found = {{}}
for command in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = int(main(list(command.words)))
    loaded = [name for name in {HEAVY + LATER} if name in sys.modules]
    found[command.name] = [code, bool(out.getvalue()), loaded]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[int, bool, list[str]]]:
    """Exit code, whether anything was printed, and what was loaded by then."""
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    answers: dict[str, tuple[int, bool, list[str]]] = json.loads(ran.stdout)
    return answers


@pytest.mark.processes
def test_no_answer_loads_anything_heavy(found: dict[str, tuple[int, bool, list[str]]]) -> None:
    assert {name: code for name, (code, _, _) in found.items() if code} == {}
    assert all(printed for _, printed, _ in found.values())
    assert {name for _, _, loaded in found.values() for name in loaded} & set(HEAVY) == set()


@pytest.mark.processes
def test_help_is_given_before_a_run_is_loaded(
    found: dict[str, tuple[int, bool, list[str]]],
) -> None:
    assert [found[name][2] for name in ("--help", "train --help", "options")] == [[], [], []]
    assert "convoy.plan.plan" in found["configs"][2]
