"""Processes exchange values at sync points; a process out of sync is named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.launch.supervisor import run_workers
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.planning.topology import TopologyPlan


def run(target: str, folder: Path, ranks: int, **options: str) -> list[Any]:
    topology = TopologyPlan(hosts=1, instances=1, replicas=ranks, stages=1)
    payload = {"folder": str(folder), **options}
    outcome = run_workers(topology, f"support.control_targets:{target}", payload, threads=1)
    assert outcome.code == 0, outcome.describe()
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    return [json.loads(file.read_text()) for file in files if file.exists()]


def test_a_single_process_gathers_its_values() -> None:
    control = ControlGroup()
    part = torch.arange(3)

    assert control.is_rank_zero
    assert control.all_gather(SyncPoint.STOP, 1, value=4) == [4]
    assert control.all_gather_values(SyncPoint.STEP_DECISION, 1, [4, 5]) == [[4, 5]]
    assert control.all_gather_tensor(SyncPoint.METRICS, 1, part)[0] is part
    assert control.broadcast(b"payload") == b"payload"
    control.wait_for_rank_zero()


@pytest.mark.processes
def test_every_rank_gathers_all_values(tmp_path: Path) -> None:
    reported = run("exchange_values", tmp_path, 3)

    assert [item.pop("is_rank_zero") for item in reported] == [True, False, False]
    assert (
        reported
        == [
            {
                "values": [0, 10, 20],
                "decisions": [[0, 2**40, -1], [1, 2**40, -1], [2, 2**40, -1]],
                "rows": [[0], [1], [2]],
                "empty_rows": [[], [], []],
                "received": "from rank 0",
                "received_empty": "",
            }
        ]
        * 3
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "theirs"),
    [
        ("point", "sync point 1 (save after update 7)"),
        ("update", "sync point 1 (stop after update 8)"),
        ("number", "sync point 2 (stop after update 7)"),
    ],
)
def test_a_process_out_of_sync_is_named_on_all_ranks(tmp_path: Path, how: str, theirs: str) -> None:
    reported = run("diverge", tmp_path, 3, difference=how)

    assert len(reported) == 3
    assert all("rank 0 is at sync point 1 (stop after update 7)" in item for item in reported)
    assert all(f"rank 2 at {theirs}" in item for item in reported)


@pytest.mark.processes
def test_waiting_for_rank_zero_has_a_longer_timeout(tmp_path: Path) -> None:
    assert run("delay_rank_zero", tmp_path, 3) == ["after the delay"] * 3


@pytest.mark.processes
def test_named_tensors_are_transferred_unchanged(tmp_path: Path) -> None:
    assert run("transfer_tensors", tmp_path, 3) == []
