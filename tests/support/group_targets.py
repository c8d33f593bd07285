"""What workers do in the tests of groups: join, meet, and write down whom they met."""

import json
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from convoy.launch.world import World
from convoy.parallel.process_groups import RankGroup, Rendezvous, init_process_groups
from convoy.planning.topology import TopologyPlan


def met(group: RankGroup, rank: int) -> list[int]:
    """The ranks that a sum over the group finds, and nobody may be counted twice."""
    marks = torch.zeros(8, dtype=torch.int64)
    marks[rank] = 1
    if group.process_group is not None:
        dist.all_reduce(marks, group=group.process_group)
    assert marks.max() == 1
    return marks.nonzero().flatten().tolist()


def listening(process: psutil.Process) -> list[str]:
    """Every address where a process can be reached."""
    sockets = process.net_connections(kind="inet")
    return [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]


def meet(world: World, payload: dict[str, Any]) -> int:
    """Join, and write down who is in each group and where this process listens."""
    topology = TopologyPlan(hosts=1, instances=1, **payload["grid"])
    rendezvous = Rendezvous(world.rendezvous, world.on_one_host, timeout_seconds=300)
    groups = init_process_groups(
        world.rank, world.world_size, topology, rendezvous, payload["span"]
    )
    seen = {
        "world": met(groups.world, world.rank),
        "pipeline": met(groups.pipeline, world.rank),
        "data_parallel": met(groups.data_parallel, world.rank),
        "span": met(groups.norm_sync, world.rank),
        "index": [groups.world.index, groups.pipeline.index, groups.data_parallel.index],
        "size": [groups.world.size, groups.pipeline.size, groups.data_parallel.size],
        "place": [groups.norm_sync.index, groups.norm_sync.size],
        "apart": groups.norm_sync.process_group is not groups.data_parallel.process_group,
        "listens": listening(psutil.Process()),
        "elders_listen": [
            ip for parent in psutil.Process().parents()[:2] for ip in listening(parent)
        ],
    }
    (Path(payload["folder"]) / f"{world.rank}.json").write_text(json.dumps(seen))
    groups.destroy()
    assert not dist.is_initialized()
    return 0


def wait_for_missing_rank(world: World, payload: dict[str, Any]) -> int:
    """One rank never comes."""
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
