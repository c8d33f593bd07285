"""Who meets whom: joins the processes of a run and forms the groups that a worker speaks with.

`world` is everybody, `line` the stages of my replica, `siblings` the replicas of my stage,
`span` those of them that share batch statistics with me. A group of one has nobody to meet; a
run of one process makes no process group at all.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch.distributed as dist

from convoy.errors import ConfigError, WorkerLostError
from convoy.plan.topology import TopologyPlan

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


class Member(Protocol):
    """A process among others; `launch.world.World` is one."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...


@dataclass(frozen=True)
class Rendezvous:
    """How the processes of a run find each other."""

    file: str | None  # on one host, and no port is needed; None: the store torchrun speaks of
    on_one_host: bool  # nothing may be reached from outside
    device: str = "cpu"
    seconds: float = 300.0  # for joining, and for every operation on a group


@dataclass(frozen=True)
class Group:
    """Ranks that work together, and the way to reach them."""

    ranks: tuple[int, ...]
    index: int  # my place among them
    handle: dist.ProcessGroup | None  # None: I am alone

    @property
    def size(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True)
class Groups:
    """The groups one process belongs to."""

    world: Group
    line: Group
    siblings: Group
    span: Group

    @classmethod
    def alone(cls) -> "Groups":
        one = Group((0,), 0, None)
        return cls(one, one, one, one)

    def leave(self) -> None:
        """Close every connection; the others are not waited for."""
        if self.world.handle is not None:
            dist.destroy_process_group()


def join(member: Member, topology: TopologyPlan, rendezvous: Rendezvous, span: int = 1) -> Groups:
    """Meet the other processes; all of them call this, in any order.

    Each `span` consecutive replicas form a group of their own, so that its messages never meet
    those of the siblings.
    """
    assert topology.replicas % span == 0
    if member.size != topology.processes:
        raise ConfigError(
            f"the run has processes: {member.size}, but --replicas {topology.replicas} × "
            f"--shards {topology.stages} need {topology.processes}; start as many"
        )
    if member.size == 1:
        return Groups.alone()
    if rendezvous.device not in _BACKENDS:
        raise ConfigError(
            f"--device {rendezvous.device} cannot be used by several processes; use --device cpu"
        )
    if rendezvous.on_one_host:
        _stay_on_loopback()
    _meet(member, rendezvous)
    here = topology.coordinates(member.rank)
    siblings = topology.replica_ranks(here.stage)
    place = here.replica % span
    first = here.replica - place
    return Groups(
        world=Group(tuple(range(member.size)), member.rank, dist.group.WORLD),
        line=_form(topology.stage_ranks(here.replica), here.stage, rendezvous),
        siblings=_form(siblings, here.replica, rendezvous),
        span=_form(siblings[first : first + span], place, rendezvous),
    )


def _meet(member: Member, rendezvous: Rendezvous) -> None:
    timeout = timedelta(seconds=rendezvous.seconds)
    store = None
    if rendezvous.file is not None:
        store = dist.FileStore(rendezvous.file, member.size)  # type: ignore[attr-defined]  # public
        store.set_timeout(timeout)
    try:
        dist.init_process_group(
            _BACKENDS[rendezvous.device],
            store=store,
            rank=member.rank,
            world_size=member.size,
            timeout=timeout,
        )
    except RuntimeError as error:
        if "timeout" not in str(error).lower():  # torch has no class of its own for this
            raise
        raise WorkerLostError(
            f"not all {member.size} processes met within {rendezvous.seconds:g} s: {error}"
        ) from error


def _form(ranks: Sequence[int], index: int, rendezvous: Rendezvous) -> Group:
    """Only its members take part; everybody forms line, siblings and span in this order."""
    if len(ranks) == 1:
        return Group(tuple(ranks), index, None)
    timeout = timedelta(seconds=rendezvous.seconds)
    handle = dist.new_group(list(ranks), timeout=timeout, use_local_synchronization=True)
    assert isinstance(handle, dist.ProcessGroup)
    return Group(tuple(ranks), index, handle)


def _stay_on_loopback() -> None:
    """gloo and NCCL listen where these variables say; otherwise where the host's name leads."""
    (name,) = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
