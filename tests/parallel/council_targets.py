"""What workers do in the tests of council and cargo."""

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from convoy.errors import HangError
from convoy.launch.world import World
from convoy.parallel import tensor_io as cargo
from convoy.parallel.control import DistributedControlGroup, SyncPoint
from convoy.parallel.process_groups import Rendezvous, join
from convoy.plan.topology import TopologyPlan


def _join(world: World, seconds: float = 300) -> dist.ProcessGroup:
    topology = TopologyPlan(hosts=1, instances=1, replicas=world.size, stages=1)
    handle = join(world, topology, Rendezvous(world.rendezvous, True, seconds=seconds)).world.handle
    assert handle is not None
    return handle


def confer(world: World, payload: dict[str, Any]) -> int:
    """Meet, gather and hear; write down what came of it."""
    council = DistributedControlGroup(_join(world))
    seen = {
        "is_first": council.is_first,
        "notes": council.all_gather(SyncPoint.STOP, 3, note=world.rank * 10),
        "verdicts": council.all_gather_many(SyncPoint.VERDICT, 3, [world.rank, 2**40, -1]),
        "rows": [
            one.tolist() for one in council.gather(SyncPoint.REPORT, 3, torch.tensor([world.rank]))
        ],
        "nothing": [one.tolist() for one in council.gather(SyncPoint.REPORT, 3, torch.zeros(0, 3))],
        "heard": council.broadcast(
            b"from the first" if council.is_first else b"never asked"
        ).decode(),
        "silence": council.broadcast(b"").decode(),
    }
    (Path(payload["folder"]) / f"{world.rank}.json").write_text(json.dumps(seen))
    return 0


def linger(world: World, payload: dict[str, Any]) -> int:
    """The first works alone for longer than any operation may take.

    All come to the start together: how long each took to get there does not count.
    """
    here = Path(payload["folder"])
    (here / f"here-{world.rank}").touch()
    while len([*here.glob("here-*")]) < world.size:
        time.sleep(0.01)
    council = DistributedControlGroup(_join(world, seconds=3))
    if council.is_first:
        time.sleep(4)
    council.wait_for_first()
    heard = council.broadcast(b"after all").decode()
    (Path(payload["folder"]) / f"{world.rank}.json").write_text(json.dumps(heard))
    return 0


def stray(world: World, payload: dict[str, Any]) -> int:
    """The last rank comes to another meeting than the rest; all of them notice."""
    council = DistributedControlGroup(_join(world))
    council.all_gather(SyncPoint.BEGIN, 0)
    is_last = world.rank == world.size - 1
    try:
        if payload["how"] == "matter":
            council.all_gather(SyncPoint.SAVE if is_last else SyncPoint.STOP, 7)
        elif payload["how"] == "update":
            council.all_gather(SyncPoint.STOP, 8 if is_last else 7)
        else:
            council.meetings += is_last
            council.all_gather(SyncPoint.STOP, 7)
    except HangError as error:
        (Path(payload["folder"]) / f"{world.rank}.json").write_text(json.dumps(str(error)))
    return 0


def samples() -> dict[str, torch.Tensor]:
    """Every type, shapes with nothing and with one, and a memory order that is not the usual."""
    chance = torch.Generator().manual_seed(0)
    return {
        "lies/otherwise": torch.randn(2, 3, 4, 5, generator=chance).to(
            memory_format=torch.channels_last
        ),
        "half": torch.randn(7, generator=chance).half(),
        "brain": torch.randn(3, 3, generator=chance).bfloat16(),
        "double": torch.randn(5, generator=chance).double(),
        "count": torch.tensor(12),
        "empty": torch.zeros(0, 4),
        "turned": torch.randn(4, 6, generator=chance).t(),
    }


def carry(world: World, payload: dict[str, Any]) -> int:
    """From rank 1 to rank 0, then from rank 0 to all."""
    del payload
    group, wanted = _join(world), samples()
    if world.rank == 1:
        cargo.send(wanted, group, to=0)
    elif world.rank == 0:
        _same(cargo.receive(group, source=1), wanted)
    _same(cargo.spread(wanted if world.rank == 0 else None, group), wanted)
    _same(cargo.spread({} if world.rank == 0 else None, group), {})
    return 0


def _same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor), name
