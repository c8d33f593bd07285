"""Runs with --compile: checks at startup, determinism, and the cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.run_convoy import TINY, CommandResult, Process, convoy

pytestmark = [pytest.mark.processes]

TIMEOUT = 900  # seconds; compilation is slow


def digest(run: Path) -> str:
    found: str = json.loads((run / "summary.json").read_text())["weights_sha256"]
    return found


def train_with(compiler: str | Path, *words: str | Path) -> CommandResult:
    """Train in a new process, because torch looks for its compiler when it is imported."""
    line = [sys.executable, "-m", "convoy", "train", *TINY, "--compile", *words]
    env = os.environ | {"CXX": str(compiler)}
    result = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    return CommandResult(result.returncode, result.stdout, result.stderr)


def test_a_missing_compiler_is_an_error_before_training(tmp_path: Path) -> None:
    result = train_with("no-such-compiler", "--output", tmp_path / "run")

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("convoy: compiling needs a C++ compiler")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_split_backward_pass_cannot_be_compiled(tmp_path: Path) -> None:
    words = ("--compile", "--pipeline-schedule=zero-bubble", "--shards=2")
    result = convoy("train", *TINY, *words, "--output", tmp_path / "run")

    assert result.code == 2
    assert result.err.startswith(
        "convoy: --compile does not support --pipeline-schedule zero-bubble"
    )
    assert "--pipeline-schedule zero-bubble" in result.err
    assert result.err.endswith("use 1f1b\n")
    assert result.err.count("\n") == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


class Compiler:
    """A script that records its calls and runs g++."""

    def __init__(self, folder: Path) -> None:
        self.calls = folder / "calls.txt"
        self.script = folder / "recording-g++"
        self.script.write_text(f'#!/bin/sh\necho "$*" >> {self.calls}\nexec g++ "$@"\n')
        self.script.chmod(0o755)

    def num_compiled(self) -> int:
        """The number of libraries compiled since the last call."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return sum("-shared" in line.split() for line in lines)

    def train(self, run: Path, *words: str | Path) -> None:
        result = train_with(self.script, "--validation-mode=after", *words, "--output", run)
        assert result.code == 0, result.err


@pytest.mark.evidence
@pytest.mark.timeout(1800)
def test_a_second_run_compiles_nothing_and_gives_the_same_weights(folder: Path) -> None:
    compiler, cache = Compiler(folder), ("--model-cache-path", folder / "programs")
    compiler.train(folder / "first", *cache)
    first = compiler.num_compiled()
    compiler.train(folder / "second", *cache)
    second = compiler.num_compiled()
    saved = sorted((folder / "programs").rglob("*.so"))
    compiler.train(folder / "temporary", *cache, "--tmp-execs")
    temporary = compiler.num_compiled()

    assert first > 0
    assert second == 0
    assert temporary == first
    assert sorted((folder / "programs").rglob("*.so")) == saved
    assert digest(folder / "first") == digest(folder / "second") == digest(folder / "temporary")


LAYOUTS = {
    "recomputed": ("--enable-recompute", r"--recompute-checkpoints=layer\d/\d+"),
    "two stages": ("--pipeline-splits=layer2/0/bn1", "--no-enable-recompute"),
    "two stages, recomputed": ("--pipeline-splits=layer2/0/bn1",),
    "two replicas": ("--replicas=2", "--gradient-accumulation=1"),
}
SYNCED_LAYOUTS = {
    "synced": (),
    "synced, recomputed": ("--enable-recompute",),
}


@pytest.mark.evidence
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_trains_compiled_and_deterministically(folder: Path, layout: str) -> None:
    cache = ("--model-cache-path", str(folder / "programs"))
    runs = [folder / f"{layout} {number}" for number in range(2)]
    for run in runs:
        words = (*TINY, "--compile", *cache, *LAYOUTS[layout], "--output", run)
        result = Process(["train", *words], scratch_of(run)).wait(TIMEOUT)
        assert result.code == 0, result.err

    assert digest(runs[0]) == digest(runs[1])


@pytest.mark.evidence
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layout", SYNCED_LAYOUTS)
def test_synced_norms_train_compiled_and_deterministically(folder: Path, layout: str) -> None:
    cache = ("--model-cache-path", str(folder / "programs"))
    synced = ("--replicas=2", "--gradient-accumulation=1", "--bn-span=2")
    runs = [folder / f"{layout} {number}" for number in range(2)]
    for run in runs:
        words = (*TINY, "--compile", *cache, *synced, *SYNCED_LAYOUTS[layout], "--output", run)
        result = Process(["train", *words], scratch_of(run)).wait(TIMEOUT)
        assert result.code == 0, result.err

    assert digest(runs[0]) == digest(runs[1])


def scratch_of(run: Path) -> Path:
    scratch = run.parent / f"{run.name} output"
    scratch.mkdir()
    return scratch
