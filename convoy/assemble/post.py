"""Where one process of a run stands: its stage and replica, its device, whom it speaks to."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from convoy.assemble.compiler import compiler_for
from convoy.assemble.cuda import prepare_cuda
from convoy.assemble.machine import choose_device, describe_machine, make_repeatable
from convoy.checkpoint.strict_json import JSON
from convoy.data.feed import Wanted
from convoy.engine.evaluator import Share
from convoy.engine.part import Part
from convoy.launch.world import World
from convoy.parallel.council import Council, FullCouncil, Single
from convoy.parallel.group import Groups, Rendezvous, join
from convoy.plan.plan import RunPlan
from convoy.plan.stages import StagePlan
from convoy.plan.topology import Coordinates


@dataclass(frozen=True)
class Post:
    """The place of a process, and what follows from it alone."""

    plan: RunPlan
    at: Coordinates
    groups: Groups
    council: Council
    device: torch.device

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """What this process runs: one stage, or one for each time around the line."""
        return self.plan.stages_of(self.at.stage)

    @property
    def wanted(self) -> Wanted:
        """The first stage takes images, the last one compares with labels."""
        last = self.plan.topology.stages - 1
        return Wanted(images=self.at.stage == 0, labels=self.at.stage == last)

    @property
    def part(self) -> Part:
        """Its part in every update."""
        topology, batch = self.plan.topology, self.plan.batch
        ends = topology.replica_ranks(topology.stages - 1)
        ranks = map(topology.coordinates, range(topology.processes))
        places = [f"replica {one.replica}, stage {one.stage}" for one in ranks]
        return Part(batch.micro_batches_of(self.at.replica), self.council, ends, places)

    @property
    def share(self) -> Share:
        """Its share of a validation."""
        return Share(self.at.replica, self.plan.topology.replicas, self.council)

    def machine(self) -> dict[str, JSON]:
        """What the bits are promised for, as a checkpoint remembers it."""
        return {**describe_machine(self.device, self.plan.config.device.threads)}


@contextmanager
def posted(world: World, plan: RunPlan) -> Iterator[Post]:
    """Take our place among the processes of a run.

    After an error nobody is waited for: the others may be gone, and this process ends anyway.
    """
    device = choose_device(plan.config.device, _device_number(plan, world.local_rank))
    make_repeatable(plan.config.device.threads)
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        prepare_cuda(plan.config, plan.topology.coordinates(world.rank).stage, memory)
    wish = plan.config.compiler
    with compiler_for(wish, device) if wish.compile else nullcontext():
        rendezvous = Rendezvous(world.meeting, world.on_one_host, device.type)
        groups = join(world, plan.topology, rendezvous, plan.batch.bn_span)
        at, whole = plan.topology.coordinates(world.rank), groups.world.handle
        yield Post(plan, at, groups, Single() if whole is None else FullCouncil(whole), device)
        groups.leave()


def _device_number(plan: RunPlan, local_rank: int) -> int:
    """Among the chosen devices of this host: each replica has its own, as many as it maps to."""
    replica, place = divmod(local_rank, plan.topology.stages)
    return replica * (max(plan.devices) + 1) + plan.devices[place]
