"""Process groups: connects the processes of a run and creates the groups of a worker.

`world` contains every rank, `pipeline` the stages of this replica, `data_parallel` the replicas of
this stage, `norm_sync` those of them that share batch statistics. A group with a single rank has no
process group, so a run with a single process creates none.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist

from convoy.errors import ConfigError, WorkerLostError
from convoy.planning.topology import TopologyPlan

_joins = count()  # of this process
_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


@dataclass(frozen=True)
class Rendezvous:
    """How the processes of a run find each other."""

    file: str | None  # of a FileStore on one host, without a port; None: the store of torchrun
    single_host: bool  # listen on the loopback interface only
    device: str = "cpu"
    timeout_seconds: float = 300.0  # for the rendezvous and for every collective


@dataclass(frozen=True)
class RankGroup:
    """Ranks that communicate with each other."""

    ranks: tuple[int, ...]
    index: int  # of this process in `ranks`
    process_group: dist.ProcessGroup | None  # None if there is no other rank

    @property
    def size(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True)
class ProcessGroups:
    """The groups that one process belongs to."""

    world: RankGroup
    pipeline: RankGroup
    data_parallel: RankGroup
    norm_sync: RankGroup

    @classmethod
    def single_process(cls) -> "ProcessGroups":
        group = RankGroup((0,), 0, None)
        return cls(group, group, group, group)

    def destroy(self) -> None:
        """Close all connections without waiting for the other ranks."""
        if self.world.process_group is not None:
            dist.destroy_process_group()


def init_process_groups(
    rank: int, processes: int, topology: TopologyPlan, rendezvous: Rendezvous, norm_sync: int = 1
) -> ProcessGroups:
    """Connect to the other processes; all of them call this, in any order.

    Every `norm_sync` consecutive replicas form a separate group, so that their messages cannot be
    confused with those of the data-parallel group.
    """
    assert topology.replicas % norm_sync == 0
    if processes != topology.processes:
        raise ConfigError(
            f"the run has {processes} process{'es' if processes > 1 else ''}, but "
            f"--replicas {topology.replicas} × --shards {topology.stages} "
            f"need {topology.processes}; start that many"
        )
    if processes == 1:
        return ProcessGroups.single_process()
    if rendezvous.device not in _BACKENDS:
        raise ConfigError(
            f"--device {rendezvous.device} does not support several processes; use --device cpu"
        )
    init_world(rank, processes, rendezvous)
    coordinates = topology.coordinates(rank)
    stage_ranks = topology.stage_ranks(coordinates.replica)
    replica_ranks = topology.replica_ranks(coordinates.stage)
    index = coordinates.replica % norm_sync
    first = coordinates.replica - index
    return ProcessGroups(
        world=RankGroup(tuple(range(processes)), rank, dist.group.WORLD),
        pipeline=new_group(stage_ranks, coordinates.stage, rendezvous),
        data_parallel=new_group(replica_ranks, coordinates.replica, rendezvous),
        norm_sync=new_group(replica_ranks[first : first + norm_sync], index, rendezvous),
    )


def init_world(rank: int, processes: int, rendezvous: Rendezvous) -> None:
    """Connect all processes."""
    if rendezvous.single_host:
        bind_to_loopback()
    timeout = timedelta(seconds=rendezvous.timeout_seconds)
    try:
        store = _open_store(processes, rendezvous, timeout)
        dist.init_process_group(
            _BACKENDS[rendezvous.device],
            store=store,
            rank=rank,
            world_size=processes,
            timeout=timeout,
        )
    except RuntimeError as error:
        if "timeout" not in str(error).lower():  # torch has no exception class for this
            raise
        raise WorkerLostError(
            f"not all {processes} processes connected within "
            f"{rendezvous.timeout_seconds:g} s: {error}"
        ) from error


def _open_store(processes: int, rendezvous: Rendezvous, timeout: timedelta) -> Any:
    """Open the store in which the processes find each other's addresses.

    A script may start several runs, one after the other, with one store of torchrun. Each has its
    own keys, because the addresses of the run before are no longer valid.
    The type is `Any`, because torch does not export the class to type checkers.
    """
    if rendezvous.file is None:
        shared, _, _ = next(dist.rendezvous("env://", timeout=timeout))  # type: ignore[attr-defined]
        return dist.PrefixStore(f"convoy-{next(_joins)}", shared)  # type: ignore[attr-defined]
    store = dist.FileStore(rendezvous.file, processes)  # type: ignore[attr-defined]  # public
    store.set_timeout(timeout)
    return store


def new_group(ranks: Sequence[int], index: int, rendezvous: Rendezvous) -> RankGroup:
    """Create a group. Only members take part; all ranks create groups in the same order."""
    if len(ranks) == 1:
        return RankGroup(tuple(ranks), index, None)
    timeout = timedelta(seconds=rendezvous.timeout_seconds)
    group = dist.new_group(list(ranks), timeout=timeout, use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)
    return RankGroup(tuple(ranks), index, group)


def bind_to_loopback() -> None:
    """Make gloo and NCCL listen on loopback instead of the address of the host name."""
    (name,) = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
