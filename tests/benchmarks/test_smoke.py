"""Every benchmark runs once in its smallest configuration."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.run_convoy import PATIENCE

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(r"benchmarks/(\w+\.py.*)", (ROOT / "Makefile").read_text())
# Parts of a benchmark, run separately here.
PARTS = {"models.py": ["models.py training", "models.py inference"]}
ALL_COMMANDS = [
    part for line in [*COMMANDS, "numerics.py accuracy"] for part in PARTS.get(line, [line])
]


def test_make_bench_runs_every_benchmark() -> None:
    scripts = (ROOT / "benchmarks").glob("*.py")
    programs = {path.name for path in scripts if '__name__ == "__main__"' in path.read_text()}

    assert {line.split()[0] for line in COMMANDS} == programs


@pytest.mark.parametrize("line", ALL_COMMANDS)
def test_a_benchmark_runs_to_its_end(line: str, tmp_path: Path) -> None:
    script, *words = line.split()
    result = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *words, "--smoke"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(r"\d\.\d", result.stdout), "no number was printed"
