"""The help of every verb, printed without heavy imports."""

import subprocess
import sys

import pytest
from support.run_convoy import convoy

from convoy.cli.args import COMMON_OPTIONS
from convoy.cli.main import VERBS
from convoy.config.schema import option_table

RUN_VERBS = ("train", "resume", "validate", "average", "plan")
HEAVY_PACKAGES = ("torch", "numpy", "rich", "yaml")

IMPORT_CHECK_SCRIPT = f"""
import contextlib, io, sys
from convoy.cli.main import main
lines = [["--help"], ["--version"], ["train", "--help"], ["resume", "--help"], ["data", "--help"],
         ["validate", "--help"], ["average", "--help"], ["plan"], ["plan", "--json"], ["options"],
         ["options", "--json"], ["models"], ["data", "bench", "--help"], ["data", "show", "--help"],
         ["train", "--lr", "-1"], ["data", "bench", "--elements", "0"], ["trian"]]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    codes = [int(main(words)) for words in lines]
print(codes, [name for name in {HEAVY_PACKAGES} if name in sys.modules])
"""


@pytest.mark.parametrize("name", VERBS)
def test_help_succeeds_and_fits_a_hundred_columns(name: str) -> None:
    result = convoy(name, "--help")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"usage: convoy {name}")
    assert [line for line in result.out.splitlines() if len(line) > 100] == []
    assert [convoy(name, word) for word in ("-h", "--hel")] == [result, result]


@pytest.mark.parametrize("name", RUN_VERBS)
def test_run_verbs_show_every_option_with_an_effect(name: str) -> None:
    words = convoy(name, "--help-all").out.split()

    assert {row.flag for row in option_table().values() if row.has_effect} <= set(words)
    assert "--enable-conv-dithering" not in words


@pytest.mark.parametrize("name", RUN_VERBS)
def test_help_shows_the_common_options_on_one_screen(name: str) -> None:
    lines = convoy(name, "--help").out.splitlines()
    flags = {line.split()[0] for line in lines if line.startswith("  --")}

    assert len(lines) <= 60
    assert {
        option_table()[option].flag for group in COMMON_OPTIONS.values() for option in group
    } <= flags
    assert "--poly-lr-end-ratio" not in flags


def test_help_does_not_wrap_inside_a_flag() -> None:
    assert "[true; --no-augment]" in " ".join(convoy("train", "--help-all").out.split())


@pytest.mark.parametrize(("name", "accepted"), [("train", True), ("plan", True), ("resume", False)])
def test_only_verbs_that_start_a_run_take_a_named_configuration(name: str, accepted: bool) -> None:
    assert ("--config-path" in convoy(name, "--help").out) is accepted


@pytest.mark.processes
def test_commands_without_a_network_import_no_heavy_packages() -> None:
    process = subprocess.run(
        [sys.executable, "-c", IMPORT_CHECK_SCRIPT], capture_output=True, text=True
    )

    assert process.stdout == f"{[0] * 14 + [2, 2, 2]} []\n", process.stderr
