"""Join the processes that run the same script: a single one, or those of torchrun."""

import atexit
import os
from functools import cache

import torch
import torch.distributed as dist

from convoy.engine.node_channels import ProcessLayout
from convoy.errors import ConfigError
from convoy.launch.world import World, has_launcher
from convoy.parallel.collectives import PeerGroup
from convoy.parallel.process_groups import Rendezvous, init_world, new_group
from convoy.parallel.replicas import ExactReplicas, ReduceOptions
from convoy.planning.topology import TopologyPlan

_MAX_MESSAGE_BYTES = 64 * 2**20  # in flight, while gradients are reduced


def join_processes(devices: int, replicas: int | None = None) -> ProcessLayout:
    """Connect to the other processes of this script, once.

    A replica has one process for each of its devices, or a single one. The number of replicas is
    that of `convoy launch`; by default each device has a process if there are enough.
    """
    world = _join_world()
    replicas = world.replicas if replicas is None else replicas
    if replicas is None:
        replicas = world.world_size if world.world_size < devices else world.world_size // devices
    if replicas < 1 or world.world_size not in (replicas, replicas * devices):
        raise ConfigError(
            f"the script runs in {world.world_size} processes, but {replicas} replicas of "
            f"{devices} devices need {replicas * devices}, or {replicas} with all stages in one "
            "process; start that many"
        )
    return _layout(world.rank, replicas, world.world_size // replicas)


@cache
def _layout(rank: int, replicas: int, processes: int) -> ProcessLayout:
    if replicas * processes == 1:
        return ProcessLayout()
    topology = TopologyPlan(1, 1, replicas, processes)
    here = topology.coordinates(rank)
    rendezvous = Rendezvous(None, True)
    group = new_group(topology.stage_ranks(here.replica), here.stage, rendezvous).process_group
    peers = new_group(topology.replica_ranks(here.stage), here.replica, rendezvous).process_group
    layout = ProcessLayout(here.replica, replicas, here.stage, processes, group, peers)
    if peers is None:
        return layout
    reduce = ReduceOptions(sharded=False, buffer_bytes=_MAX_MESSAGE_BYTES)
    exact = ExactReplicas(PeerGroup(peers), reduce)
    return ProcessLayout(here.replica, replicas, here.stage, processes, group, peers, exact)


@cache
def _join_world() -> World:
    """The world of torch.distributed if the script initialized it, or that of the launcher."""
    if dist.is_available() and dist.is_initialized():
        size = dist.get_world_size()
        return World(dist.get_rank(), size, dist.get_rank(), size)
    if not has_launcher(os.environ):
        return World.single_process()
    world = World.from_environment(os.environ)
    if world.world_size > 1:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda":
            torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
        rendezvous = Rendezvous(world.rendezvous, world.on_one_host, device)
        init_world(world.rank, world.world_size, rendezvous)
        atexit.register(_leave)
    return world


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
