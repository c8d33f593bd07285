"""One process of a run: its stage and replica, its device, its process groups."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from convoy.checkpoint.format import JSON
from convoy.data.loader import NeededInputs
from convoy.engine.evaluator import Share
from convoy.engine.micro_batches import UpdateShare
from convoy.launch.world import World
from convoy.parallel.control import ControlGroup, DistributedControlGroup
from convoy.parallel.process_groups import Groups, Rendezvous, join
from convoy.plan.plan import RunPlan
from convoy.plan.stages import StagePlan
from convoy.plan.topology import Coordinates
from convoy.run.compile import compiler_for
from convoy.run.device import choose_device, describe_machine, make_repeatable, prepare_cuda


@dataclass(frozen=True)
class ProcessContext:
    """Where a process stands in the run, and what follows from that alone."""

    plan: RunPlan
    coordinates: Coordinates
    groups: Groups
    control: ControlGroup
    device: torch.device

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """What this process runs: one stage, or one for each time around the line."""
        return self.plan.stages_of(self.coordinates.stage)

    @property
    def needs(self) -> NeededInputs:
        """The first stage takes images, the last one compares with labels."""
        last = self.plan.topology.stages - 1
        return NeededInputs(
            images=self.coordinates.stage == 0, labels=self.coordinates.stage == last
        )

    @property
    def update_share(self) -> UpdateShare:
        """Its part in every update."""
        topology, batch = self.plan.topology, self.plan.batch
        ends = topology.replica_ranks(topology.stages - 1)
        ranks = map(topology.coordinates, range(topology.processes))
        places = [f"replica {one.replica}, stage {one.stage}" for one in ranks]
        return UpdateShare(
            batch.micro_batches_of(self.coordinates.replica), self.control, ends, places
        )

    @property
    def share(self) -> Share:
        """Its share of a validation."""
        return Share(self.coordinates.replica, self.plan.topology.replicas, self.control)

    def machine(self) -> dict[str, JSON]:
        """What the bits are promised for, as a checkpoint remembers it."""
        return {**describe_machine(self.device, self.plan.config.device.threads)}


@contextmanager
def join_run(world: World, plan: RunPlan) -> Iterator[ProcessContext]:
    """Join the process groups of a run, on the device of this process.

    After an error nobody is waited for: the others may be gone, and this process ends anyway.
    """
    device = choose_device(plan.config.device, _device_number(plan, world.local_rank))
    make_repeatable(plan.config.device.threads)
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        prepare_cuda(plan.config, plan.topology.coordinates(world.rank).stage, memory)
    wish = plan.config.compiler
    with compiler_for(wish, device) if wish.compile else nullcontext():
        rendezvous = Rendezvous(world.rendezvous, world.on_one_host, device.type)
        groups = join(world, plan.topology, rendezvous, plan.batch.bn_span)
        coordinates, whole = plan.topology.coordinates(world.rank), groups.world.handle
        control = ControlGroup() if whole is None else DistributedControlGroup(whole)
        yield ProcessContext(plan, coordinates, groups, control, device)
        groups.leave()


def _device_number(plan: RunPlan, local_rank: int) -> int:
    """Among the chosen devices of this host: each replica has its own, as many as it maps to."""
    replica, place = divmod(local_rank, plan.topology.stages)
    return replica * (max(plan.devices) + 1) + plan.devices[place]
