"""The entry point: verbs, exit codes, plain error messages, closed pipes."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from pages.command_words import parser_of
from support.run_convoy import convoy

from convoy import __version__
from convoy.cli import main as entry_point
from convoy.cli.main import VERBS
from convoy.errors import ConvoyError, DataError, ExitCode


def patch_verb_to_raise(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `convoy models` raise this error."""

    def fail(words: list[str]) -> int:
        del words
        raise error

    monkeypatch.setattr(import_module("convoy.cli.models"), "main", fail)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_without_a_verb_the_verbs_are_shown(words: list[str]) -> None:
    result = convoy(*words)

    assert (result.code, result.err) == (0, "")
    assert all(
        f"\n  {verb} " in result.out and description in result.out
        for verb, description in VERBS.items()
    )


def test_the_version_is_printed() -> None:
    assert convoy("--version").out == f"convoy {__version__}\n"


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_a_parser_with_a_description(name: str) -> None:
    assert (parser_of(name).description or "").rstrip().endswith(".")


@pytest.mark.parametrize("word", ["trian", "TRAIN", "--lr", ""])
def test_an_unknown_verb_is_refused(word: str) -> None:
    result = convoy(word)

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"convoy: unknown command {word!r}; ")
    assert result.err.count("\n") == 1


def test_an_unknown_verb_is_refused_with_near_names() -> None:
    assert "did you mean train" in convoy("trian").err


def test_an_error_is_reported_line_by_line_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patch_verb_to_raise(DataError("file a is short\nfile b is gone"), monkeypatch)
    result = convoy("models")

    assert (result.code, result.out) == (3, "")
    assert result.err == "convoy: file a is short\nconvoy: file b is gone\n"


@pytest.mark.parametrize("words", [("--debug", "models"), ("models", "--debug")])
def test_debug_prints_the_traceback_and_keeps_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    patch_verb_to_raise(DataError("file a is short"), monkeypatch)
    result = convoy(*words)

    assert result.code == 3
    assert result.err.startswith("Traceback (most recent call last):")
    assert result.err.endswith("convoy: file a is short\n")


def test_an_internal_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_verb_to_raise(KeyError("a bug"), monkeypatch)

    with pytest.raises(KeyError):
        convoy("models")


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_verb_to_raise(KeyboardInterrupt(), monkeypatch)

    assert convoy("models").code == 130


def test_every_error_has_a_different_exit_code() -> None:
    codes = [error.code for error in (ConvoyError, *ConvoyError.__subclasses__())]

    assert len(set(codes)) == len(codes)
    assert ExitCode.DONE not in codes


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["--help", "options"])
def test_a_closed_pipe_is_not_an_error(verb: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = subprocess.run(
        [sys.executable, "-m", "convoy", verb],
        stdout=write_end,
        stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    os.close(write_end)

    assert (process.returncode, process.stderr) == (0, b"")


@pytest.mark.processes
def test_a_terminal_without_unicode_still_gets_its_output() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "convoy", "plan"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )

    assert (process.returncode, process.stderr) == (0, b"")
    assert b"32 ? 32 image" in process.stdout


def test_the_console_script_calls_run() -> None:
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()

    assert 'convoy = "convoy.cli.main:run"' in pyproject
    assert callable(entry_point.run)


def test_a_process_of_a_launcher_exits_without_finalizing_the_interpreter(tmp_path: Path) -> None:
    """Otherwise gloo threads that still free tensors would abort the process."""
    (tmp_path / "sitecustomize.py").write_text("import atexit; atexit.register(print, 'finalized')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "RANK": "0"}
    command = [sys.executable, "-m", "convoy", "--version"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert process.stdout == f"convoy {__version__}\n"
