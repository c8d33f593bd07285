"""Fast commands import nothing heavy: those that `benchmarks/start.py` times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HEAVY = ["torch", "numpy", "rich"]
LATER = [
    "convoy.launch.supervisor",
    "convoy.planning.plan",
    "multiprocessing",
]  # not needed for help

LOADED = f"""
import contextlib, io, json, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from convoy.cli.main import main
from start import COMMANDS
outcomes = {{}}
for command in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = int(main(list(command.words)))
    loaded = [name for name in {HEAVY + LATER} if name in sys.modules]
    outcomes[command.name] = [code, bool(out.getvalue()), loaded]
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[int, bool, list[str]]]:
    """Exit code, whether anything was printed, and the imported modules."""
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    answers: dict[str, tuple[int, bool, list[str]]] = json.loads(ran.stdout)
    return answers


@pytest.mark.processes
def test_no_command_imports_anything_heavy(
    outcomes: dict[str, tuple[int, bool, list[str]]],
) -> None:
    assert {name: code for name, (code, _, _) in outcomes.items() if code} == {}
    assert all(printed for _, printed, _ in outcomes.values())
    assert {name for _, _, loaded in outcomes.values() for name in loaded} & set(HEAVY) == set()


@pytest.mark.processes
def test_help_is_printed_before_torch_is_imported(
    outcomes: dict[str, tuple[int, bool, list[str]]],
) -> None:
    assert [outcomes[name][2] for name in ("--help", "train --help", "options")] == [[], [], []]
    assert "convoy.planning.plan" in outcomes["configs"][2]
