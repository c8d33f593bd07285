"""Processes form the planned groups and listen on the loopback interface only."""

import json
import os
import socket
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from convoy.errors import ConfigError, WorkerLostError
from convoy.launch.supervisor import run_workers
from convoy.launch.world import World
from convoy.parallel.process_groups import ProcessGroups, Rendezvous, init_process_groups
from convoy.planning.topology import TopologyPlan

HERE = Path(__file__).parent
SINGLE_HOST = Rendezvous(file=None, single_host=True)

SCRIPT = """
import json, os, sys
from convoy.launch.world import World
from support.group_targets import record_groups

sys.exit(record_groups(World.from_environment(os.environ), json.loads(sys.argv[1])))
"""


def topology(replicas: int, stages: int) -> TopologyPlan:
    return TopologyPlan(hosts=1, instances=1, replicas=replicas, stages=stages)


def read_results(folder: Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def run_grid(folder: Path, replicas: int, stages: int, span: int = 1) -> list[dict[str, Any]]:
    requested = {"replicas": replicas, "stages": stages}
    payload = {"folder": str(folder), "grid": requested, "span": span}
    outcome = run_workers(
        topology(replicas, stages), "support.group_targets:record_groups", payload, threads=1
    )
    assert outcome.code == 0, outcome.describe()
    return read_results(folder, replicas * stages)


@pytest.mark.processes
def test_pipeline_and_data_parallel_groups_match_the_topology(tmp_path: Path) -> None:
    ranks = run_grid(tmp_path, replicas=2, stages=2)

    assert [rank["world"] for rank in ranks] == [[0, 1, 2, 3]] * 4
    assert [rank["pipeline"] for rank in ranks] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [rank["data_parallel"] for rank in ranks] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert [rank["index"] for rank in ranks] == [[0, 0, 0], [1, 1, 0], [2, 0, 1], [3, 1, 1]]
    assert [rank["size"] for rank in ranks] == [[4, 2, 2]] * 4


@pytest.mark.processes
@pytest.mark.parametrize(("replicas", "stages"), [(1, 3), (3, 1)])
def test_a_group_of_one_contains_only_this_rank(tmp_path: Path, replicas: int, stages: int) -> None:
    ranks = run_grid(tmp_path, replicas, stages)
    single = "pipeline" if stages == 1 else "data_parallel"
    other = "data_parallel" if stages == 1 else "pipeline"

    assert [rank[single] for rank in ranks] == [[0], [1], [2]]
    assert [rank[other] for rank in ranks] == [[0, 1, 2]] * 3


@pytest.mark.processes
@pytest.mark.parametrize(
    ("replicas", "stages", "span", "groups", "indices"),
    [
        (4, 1, 2, [[0, 1], [0, 1], [2, 3], [2, 3]], [0, 1, 0, 1]),
        # Equal to the data-parallel groups.
        (2, 2, 2, [[0, 2], [1, 3], [0, 2], [1, 3]], [0, 0, 1, 1]),
        (2, 2, 1, [[0], [1], [2], [3]], [0, 0, 0, 0]),
    ],
)
def test_consecutive_replicas_of_a_stage_form_a_norm_sync_group(
    tmp_path: Path,
    replicas: int,
    stages: int,
    span: int,
    groups: list[list[int]],
    indices: list[int],
) -> None:
    ranks = run_grid(tmp_path, replicas, stages, span)

    assert [rank["norm_sync"] for rank in ranks] == groups
    assert [rank["norm_sync_index_and_size"] for rank in ranks] == [
        [index, span] for index in indices
    ]
    assert all(rank["norm_sync_is_separate"] for rank in ranks)


@pytest.mark.processes
def test_no_process_can_be_reached_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the environment names an external network interface."""
    for _, name in socket.if_nameindex():
        if (Path("/sys/class/net") / name / "device").exists():
            monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
    ranks = run_grid(tmp_path, replicas=2, stages=2)
    addresses = [ip for rank in ranks for ip in rank["listens"]]

    assert len(addresses) >= 4
    assert [ip for ip in addresses if not ip_address(ip).is_loopback] == []
    # The forkserver and the supervisor.
    assert [rank["parents_listen"] for rank in ranks] == [[]] * 4


@pytest.mark.processes
@pytest.mark.slow
def test_processes_connect_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    payload = {"folder": str(tmp_path), "grid": {"replicas": 1, "stages": 2}, "span": 1}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ended = subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(script), json.dumps(payload)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    ranks = read_results(tmp_path, 2)

    assert [rank["pipeline"] for rank in ranks] == [[0, 1]] * 2
    assert [rank["data_parallel"] for rank in ranks] == [[0], [1]]
    assert all(ip_address(ip).is_loopback for rank in ranks for ip in rank["listens"])


@pytest.mark.processes
def test_a_missing_process_causes_a_timeout() -> None:
    outcome = run_workers(
        topology(2, 1), "support.group_targets:wait_for_missing_rank", {"seconds": 0.5}, threads=1
    )
    error = outcome.error()

    assert isinstance(error, WorkerLostError)
    assert "2 processes" in str(error) and "0.5 s" in str(error)


def test_a_single_process_creates_no_process_group() -> None:
    groups = init_process_groups(0, 1, topology(1, 1), SINGLE_HOST)
    initialized = dist.is_initialized()
    groups.destroy()

    assert groups == ProcessGroups.single_process()
    assert groups.pipeline.process_group is None
    assert not initialized


def test_a_wrong_number_of_processes_is_refused() -> None:
    world = World(rank=0, world_size=2, local_rank=0, local_world_size=2)

    with pytest.raises(ConfigError, match=r"has 2 processes, but.*2 × --shards 2 need 4"):
        init_process_groups(world.rank, world.world_size, topology(2, 2), SINGLE_HOST)


def test_a_device_that_processes_cannot_share_is_refused() -> None:
    world = World(rank=0, world_size=2, local_rank=0, local_world_size=2)

    with pytest.raises(ConfigError, match=r"--device mps .*use --device cpu"):
        init_process_groups(
            world.rank, world.world_size, topology(2, 1), Rendezvous(None, True, device="mps")
        )
