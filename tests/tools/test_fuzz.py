"""The fuzzer: every target passes a small share of `make fuzz`, and a bug in a target is found."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from fuzz import damage, fuzz
from fuzz_targets import Target, targets

TOOL = Path(__file__).parents[2] / "tools" / "fuzz.py"


@pytest.mark.parametrize("name", ["frame", "example", "index", "tar", "cifar"])
def test_a_target_raises_only_documented_errors(name: str, tmp_path: Path) -> None:
    outcome = fuzz(targets(tmp_path)[name], inputs=2000, seed=name)

    assert outcome.trace == ""
    assert outcome.inputs == 2000
    assert outcome.rejected < 2000, "every input is rejected"


@pytest.mark.parametrize("name", ["frame", "example", "index", "tar", "cifar"])
def test_the_valid_inputs_of_a_target_are_read(name: str, tmp_path: Path) -> None:
    target = targets(tmp_path)[name]
    for seed in target.seeds:
        target.read(seed)


def test_an_undocumented_error_is_found_with_its_input() -> None:
    def read(data: bytes) -> None:
        if len(data) < 3:
            raise IndexError("too short")

    outcome = fuzz(Target([b"abcdefgh"], read, (ValueError,)), inputs=1000, seed="0")

    assert outcome.failing is not None
    assert len(outcome.failing) < 3
    assert "IndexError: too short" in outcome.trace


def test_inputs_are_a_function_of_the_seed() -> None:
    first, again, other = (
        [damage([b"abcdefgh", b"12345"], rng) for _ in range(200)]
        for rng in (Random("a"), Random("a"), Random("b"))
    )

    assert first == again
    assert first != other
    assert len(set(first)) > 150


@pytest.mark.processes
def test_the_tool_prints_the_number_of_inputs() -> None:
    result = subprocess.run(
        [sys.executable, str(TOOL), "frame", "--inputs", "50"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TOOL.parents[1])},
        check=True,
    )

    assert result.stdout.startswith("frame: 50 inputs, 0 rejected, ")
