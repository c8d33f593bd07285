"""Every benchmark still runs: each once, as small as it gets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.run_convoy import PATIENCE

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
BENCHED = re.findall(r"benchmarks/(\w+\.py.*)", (ROOT / "Makefile").read_text())
# Parts of a benchmark that `make bench` leaves out, or runs together with another.
PARTS = {"models.py": ["models.py training", "models.py inference"]}
LINES = [part for line in [*BENCHED, "numerics.py accuracy"] for part in PARTS.get(line, [line])]


def test_make_bench_names_every_benchmark() -> None:
    scripts = (ROOT / "benchmarks").glob("*.py")
    programs = {path.name for path in scripts if '__name__ == "__main__"' in path.read_text()}

    assert {line.split()[0] for line in BENCHED} == programs


@pytest.mark.parametrize("line", LINES)
def test_a_benchmark_runs_to_its_end(line: str, tmp_path: Path) -> None:
    script, *words = line.split()
    ran = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *words, "--smoke"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.search(r"\d\.\d", ran.stdout), "no figure"
