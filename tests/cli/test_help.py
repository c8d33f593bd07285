"""Help answers for every verb, with nothing heavy loaded."""

import subprocess
import sys

import pytest
from running import convoy

from convoy.cli.main import VERBS
from convoy.config.schema import option_table

OF_A_RUN = ("train", "resume", "validate", "average", "plan")
HEAVY = ("torch", "numpy", "rich", "yaml")

LOADED = f"""
import contextlib, io, sys
from convoy.cli.main import main
lines = [["--help"], ["--version"], ["train", "--help"], ["resume", "--help"], ["data", "--help"],
         ["validate", "--help"], ["average", "--help"], ["plan"], ["plan", "--json"], ["options"],
         ["options", "--json"], ["models"], ["data", "bench", "--help"], ["data", "show", "--help"],
         ["train", "--lr", "-1"], ["data", "bench", "--elements", "0"], ["trian"]]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    codes = [int(main(words)) for words in lines]
print(codes, [name for name in {HEAVY} if name in sys.modules])
"""


@pytest.mark.parametrize("name", VERBS)
def test_help_is_no_error_and_fits_a_window_of_a_hundred_columns(name: str) -> None:
    said = convoy(name, "--help")

    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"usage: convoy {name}")
    assert [line for line in said.out.splitlines() if len(line) > 100] == []
    assert [convoy(name, word) for word in ("-h", "--hel")] == [said, said]


@pytest.mark.parametrize("name", OF_A_RUN)
def test_verbs_of_a_run_show_every_option_that_does_something(name: str) -> None:
    words = convoy(name, "--help").out.split()

    assert {row.flag for row in option_table().values() if row.does_something} <= set(words)
    assert "--enable-conv-dithering" not in words


def test_help_keeps_spellings_whole() -> None:
    assert "[true; --no-augment]" in " ".join(convoy("train", "--help").out.split())


@pytest.mark.parametrize(("name", "has"), [("train", True), ("plan", True), ("resume", False)])
def test_only_what_begins_a_run_takes_a_named_configuration(name: str, has: bool) -> None:
    assert ("--config-path" in convoy(name, "--help").out) is has


@pytest.mark.processes
def test_what_needs_no_network_loads_nothing_heavy() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)

    assert ran.stdout == f"{[0] * 14 + [2, 2, 2]} []\n", ran.stderr
