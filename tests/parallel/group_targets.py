"""What workers do in the tests of groups: join, meet, and write down whom they met."""

import json
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from convoy.launch.world import World
from convoy.parallel.process_groups import Group, Rendezvous, join
from convoy.plan.topology import TopologyPlan


def met(group: Group, rank: int) -> list[int]:
    """The ranks that a sum over the group finds, and nobody may be counted twice."""
    marks = torch.zeros(8, dtype=torch.int64)
    marks[rank] = 1
    if group.handle is not None:
        dist.all_reduce(marks, group=group.handle)
    assert marks.max() == 1
    return marks.nonzero().flatten().tolist()


def listening(process: psutil.Process) -> list[str]:
    """Every address where a process can be reached."""
    sockets = process.net_connections(kind="inet")
    return [one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN]


def meet(world: World, payload: dict[str, Any]) -> int:
    """Join, and write down who is in each group and where this process listens."""
    topology = TopologyPlan(hosts=1, instances=1, **payload["grid"])
    rendezvous = Rendezvous(world.rendezvous, world.on_one_host, seconds=300)
    groups = join(world, topology, rendezvous, payload["span"])
    seen = {
        "world": met(groups.world, world.rank),
        "line": met(groups.line, world.rank),
        "siblings": met(groups.siblings, world.rank),
        "span": met(groups.span, world.rank),
        "index": [groups.world.index, groups.line.index, groups.siblings.index],
        "size": [groups.world.size, groups.line.size, groups.siblings.size],
        "place": [groups.span.index, groups.span.size],
        "apart": groups.span.handle is not groups.siblings.handle,
        "listens": listening(psutil.Process()),
        "elders_listen": [ip for one in psutil.Process().parents()[:2] for ip in listening(one)],
    }
    (Path(payload["folder"]) / f"{world.rank}.json").write_text(json.dumps(seen))
    groups.leave()
    assert not dist.is_initialized()
    return 0


def wait_in_vain(world: World, payload: dict[str, Any]) -> int:
    """One rank never comes."""
    if world.rank == 1:
        return 0
    topology = TopologyPlan(hosts=1, instances=1, replicas=2, stages=1)
    join(world, topology, Rendezvous(world.rendezvous, True, seconds=payload["seconds"]))
    return 0
