"""The commands that `benchmarks/start.py` times import no heavy packages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HEAVY_PACKAGES = ["torch", "numpy", "rich"]
NOT_FOR_HELP = [
    "convoy.launch.supervisor",
    "convoy.planning.plan",
    "multiprocessing",
]

OUTCOMES_SCRIPT = f"""
import contextlib, io, json, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from convoy.cli.main import main
from start import COMMANDS
outcomes = {{}}
for command in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = int(main(list(command.words)))
    loaded = [name for name in {HEAVY_PACKAGES + NOT_FOR_HELP} if name in sys.modules]
    outcomes[command.name] = [code, bool(out.getvalue()), loaded]
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[int, bool, list[str]]]:
    """For each command: exit code, whether it printed anything, and the imported modules."""
    process = subprocess.run(
        [sys.executable, "-c", OUTCOMES_SCRIPT], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    outcomes: dict[str, tuple[int, bool, list[str]]] = json.loads(process.stdout)
    return outcomes


@pytest.mark.processes
def test_no_command_imports_heavy_packages(
    outcomes: dict[str, tuple[int, bool, list[str]]],
) -> None:
    assert {name: code for name, (code, _, _) in outcomes.items() if code} == {}
    assert all(printed for _, printed, _ in outcomes.values())
    assert {name for _, _, loaded in outcomes.values() for name in loaded} & set(
        HEAVY_PACKAGES
    ) == set()


@pytest.mark.processes
def test_help_imports_neither_the_planner_nor_the_supervisor(
    outcomes: dict[str, tuple[int, bool, list[str]]],
) -> None:
    assert [outcomes[name][2] for name in ("--help", "train --help", "options")] == [[], [], []]
    assert "convoy.planning.plan" in outcomes["configs"][2]
