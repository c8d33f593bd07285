"""Processes decide together, and one that strays is named with both entries."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.launch.supervisor import run_workers
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.plan.topology import TopologyPlan


@pytest.fixture(autouse=True)
def _targets_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def run(target: str, folder: Path, ranks: int, **more: str) -> list[Any]:
    topology = TopologyPlan(hosts=1, instances=1, replicas=ranks, stages=1)
    payload = {"folder": str(folder), **more}
    outcome = run_workers(topology, f"council_targets:{target}", payload, threads=1)
    assert outcome.code == 0, outcome.describe()
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    return [json.loads(one.read_text()) for one in files if one.exists()]


def test_who_is_alone_agrees_with_itself() -> None:
    council = ControlGroup()
    part = torch.arange(3)

    assert council.is_first
    assert council.all_gather(SyncPoint.STOP, 1, note=4) == [4]
    assert council.all_gather_many(SyncPoint.VERDICT, 1, [4, 5]) == [[4, 5]]
    assert council.gather(SyncPoint.REPORT, 1, part)[0] is part
    assert council.broadcast(b"own") == b"own"
    council.wait_for_first()


@pytest.mark.processes
def test_everybody_hears_everybody(tmp_path: Path) -> None:
    told = run("confer", tmp_path, 3)

    assert [one.pop("is_first") for one in told] == [True, False, False]
    assert (
        told
        == [
            {
                "notes": [0, 10, 20],
                "verdicts": [[0, 2**40, -1], [1, 2**40, -1], [2, 2**40, -1]],
                "rows": [[0], [1], [2]],
                "nothing": [[], [], []],
                "heard": "from the first",
                "silence": "",
            }
        ]
        * 3
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "theirs"),
    [
        ("matter", "meeting 1 (save after update 7)"),
        ("update", "meeting 1 (stop after update 8)"),
        ("number", "meeting 2 (stop after update 7)"),
    ],
)
def test_one_that_strays_is_named_everywhere(tmp_path: Path, how: str, theirs: str) -> None:
    told = run("stray", tmp_path, 3, how=how)

    assert len(told) == 3
    assert all("rank 0 came to meeting 1 (stop after update 7)" in one for one in told)
    assert all(f"rank 2 to {theirs}" in one for one in told)


@pytest.mark.processes
def test_the_first_may_take_longer_than_a_message_may(tmp_path: Path) -> None:
    assert run("linger", tmp_path, 3) == ["after all"] * 3


@pytest.mark.processes
def test_named_tensors_arrive_as_they_were(tmp_path: Path) -> None:
    assert run("carry", tmp_path, 3) == []
