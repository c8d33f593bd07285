"""Worker functions for the tests of process groups; they record the members of each group."""

import json
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from convoy.launch.world import World
from convoy.parallel.process_groups import RankGroup, Rendezvous, init_process_groups
from convoy.planning.topology import TopologyPlan


def members(group: RankGroup, rank: int) -> list[int]:
    """The ranks of a group, found with an all-reduce that counts each rank once."""
    marks = torch.zeros(8, dtype=torch.int64)
    marks[rank] = 1
    if group.process_group is not None:
        dist.all_reduce(marks, group=group.process_group)
    assert marks.max() == 1
    return marks.nonzero().flatten().tolist()


def listening(process: psutil.Process) -> list[str]:
    """Every address that a process listens on."""
    sockets = process.net_connections(kind="inet")
    return [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]


def record_groups(world: World, payload: dict[str, Any]) -> int:
    """Write the members of each group and the addresses of this process to a file."""
    topology = TopologyPlan(hosts=1, instances=1, **payload["grid"])
    rendezvous = Rendezvous(world.rendezvous, world.on_one_host, timeout_seconds=300)
    groups = init_process_groups(
        world.rank, world.world_size, topology, rendezvous, payload["span"]
    )
    seen = {
        "world": members(groups.world, world.rank),
        "pipeline": members(groups.pipeline, world.rank),
        "data_parallel": members(groups.data_parallel, world.rank),
        "norm_sync": members(groups.norm_sync, world.rank),
        "index": [groups.world.index, groups.pipeline.index, groups.data_parallel.index],
        "size": [groups.world.size, groups.pipeline.size, groups.data_parallel.size],
        "norm_sync_index_and_size": [groups.norm_sync.index, groups.norm_sync.size],
        "norm_sync_is_separate": groups.norm_sync.process_group
        is not groups.data_parallel.process_group,
        "listens": listening(psutil.Process()),
        "parents_listen": [
            ip for parent in psutil.Process().parents()[:2] for ip in listening(parent)
        ],
    }
    (Path(payload["folder"]) / f"{world.rank}.json").write_text(json.dumps(seen))
    groups.destroy()
    assert not dist.is_initialized()
    return 0


def wait_for_missing_rank(world: World, payload: dict[str, Any]) -> int:
    """Rank 1 exits before the rendezvous."""
    if world.rank == 1:
        return 0
    topology = TopologyPlan(hosts=1, instances=1, replicas=2, stages=1)
    init_process_groups(
        world.rank,
        world.world_size,
        topology,
        Rendezvous(world.rendezvous, True, timeout_seconds=payload["seconds"]),
    )
    return 0
