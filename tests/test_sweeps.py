"""Sweeps run every case, work with fixtures and parameters, and name the case of a failure."""

from pathlib import Path

import pytest
from support.sweeps import sweep


def test_every_case_runs_once():
    seen: list[tuple[int, str]] = []

    @sweep("size", range(3))
    @sweep("name", ["a", "b"])
    def body(size: int, name: str) -> None:
        seen.append((size, name))

    body()

    assert seen == [(size, name) for size in range(3) for name in "ab"]


def test_a_failure_names_its_case():
    @sweep(("low", "high"), [(1, 2), (4, 3)])
    def body(low: int, high: int) -> None:
        assert low < high

    with pytest.raises(AssertionError) as failed:
        body()

    assert failed.value.__notes__ == ["in the case {'low': 4, 'high': 3}"]


@pytest.mark.parametrize("name", ["one"])
@sweep("size", [7])
def test_a_sweep_works_with_fixtures_and_other_parameters(tmp_path: Path, name: str, size: int):
    assert tmp_path.is_dir() and (name, size) == ("one", 7)


def test_an_empty_sweep_is_an_error():
    with pytest.raises(AssertionError, match="tests nothing"):
        sweep("size", [])
