"""Worker functions for the tests of the control group and of tensor transfers."""

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from convoy.errors import HangError
from convoy.launch.world import World
from convoy.parallel import tensor_io
from convoy.parallel.control import DistributedControlGroup, SyncPoint
from convoy.parallel.process_groups import Rendezvous, init_process_groups
from convoy.planning.topology import TopologyPlan


def _join(world: World, seconds: float = 300) -> dist.ProcessGroup:
    topology = TopologyPlan(hosts=1, instances=1, replicas=world.world_size, stages=1)
    handle = init_process_groups(
        world.rank,
        world.world_size,
        topology,
        Rendezvous(world.rendezvous, True, timeout_seconds=seconds),
    ).world.process_group
    assert handle is not None
    return handle


def exchange_values(world: World, payload: dict[str, Any]) -> int:
    """Run every collective and write the results to a file."""
    control = DistributedControlGroup(_join(world))
    seen = {
        "is_rank_zero": control.is_rank_zero,
        "values": control.all_gather(SyncPoint.STOP, 3, value=world.rank * 10),
        "decisions": control.all_gather_values(SyncPoint.STEP_DECISION, 3, [world.rank, 2**40, -1]),
        "rows": [
            item.tolist()
            for item in control.all_gather_tensor(SyncPoint.METRICS, 3, torch.tensor([world.rank]))
        ],
        "empty_rows": [
            item.tolist()
            for item in control.all_gather_tensor(SyncPoint.METRICS, 3, torch.zeros(0, 3))
        ],
        "received": control.broadcast(
            b"from rank 0" if control.is_rank_zero else b"ignored"
        ).decode(),
        "received_empty": control.broadcast(b"").decode(),
    }
    (Path(payload["folder"]) / f"{world.rank}.json").write_text(json.dumps(seen))
    return 0


def delay_rank_zero(world: World, payload: dict[str, Any]) -> int:
    """Rank 0 works for longer than the timeout of a collective.

    All ranks start at the same time, so that different startup times do not count.
    """
    folder = Path(payload["folder"])
    (folder / f"ready-{world.rank}").touch()
    while len([*folder.glob("ready-*")]) < world.world_size:
        time.sleep(0.01)
    control = DistributedControlGroup(_join(world, seconds=3))
    if control.is_rank_zero:
        time.sleep(4)
    control.wait_for_rank_zero()
    received = control.broadcast(b"after the delay").decode()
    (folder / f"{world.rank}.json").write_text(json.dumps(received))
    return 0


def diverge(world: World, payload: dict[str, Any]) -> int:
    """The last rank reaches a different sync point; all ranks report it."""
    control = DistributedControlGroup(_join(world))
    control.all_gather(SyncPoint.START, 0)
    is_last = world.rank == world.world_size - 1
    try:
        if payload["difference"] == "point":
            control.all_gather(SyncPoint.SAVE if is_last else SyncPoint.STOP, 7)
        elif payload["difference"] == "update":
            control.all_gather(SyncPoint.STOP, 8 if is_last else 7)
        else:
            control.sequence_number += is_last
            control.all_gather(SyncPoint.STOP, 7)
    except HangError as error:
        (Path(payload["folder"]) / f"{world.rank}.json").write_text(json.dumps(str(error)))
    return 0


def samples() -> dict[str, torch.Tensor]:
    """Tensors of every dtype, scalars, empty tensors, and other memory formats."""
    generator = torch.Generator().manual_seed(0)
    return {
        "channels/last": torch.randn(2, 3, 4, 5, generator=generator).to(
            memory_format=torch.channels_last
        ),
        "float16": torch.randn(7, generator=generator).half(),
        "bfloat16": torch.randn(3, 3, generator=generator).bfloat16(),
        "float64": torch.randn(5, generator=generator).double(),
        "scalar": torch.tensor(12),
        "empty": torch.zeros(0, 4),
        "transposed": torch.randn(4, 6, generator=generator).t(),
    }


def transfer_tensors(world: World, payload: dict[str, Any]) -> int:
    """Send from rank 1 to rank 0, then broadcast from rank 0."""
    del payload
    group, expected = _join(world), samples()
    if world.rank == 1:
        tensor_io.send(expected, group, to=0)
    elif world.rank == 0:
        _assert_equal(tensor_io.receive(group, source=1), expected)
    _assert_equal(tensor_io.broadcast(expected if world.rank == 0 else None, group), expected)
    _assert_equal(tensor_io.broadcast({} if world.rank == 0 else None, group), {})
    return 0


def _assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor), name
