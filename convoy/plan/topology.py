"""Hosts × instances × replicas × stages: one process for each stage of each replica.

rank = replica × stages + stage, so the stages of a replica are neighbors. Replicas are dealt to
instances (groups that share a loader) in equal blocks, and instances to hosts likewise.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from convoy.config.settings import Problem, refuse
from convoy.text import counted


@dataclass(frozen=True)
class Coordinates:
    """Where one process stands."""

    host: int
    instance: int
    replica: int
    stage: int


@dataclass(frozen=True)
class TopologyPlan:
    """Who stands where. Every count is a total over the whole run."""

    hosts: int
    instances: int
    replicas: int
    stages: int

    def __post_init__(self) -> None:
        assert min(self.hosts, self.instances, self.replicas, self.stages) >= 1
        refuse(self._problems())

    def _problems(self) -> Iterator[Problem]:
        if self.replicas % self.instances:
            yield _uneven("--instances", self.instances, "--replicas", self.replicas)
        if self.instances % self.hosts:
            yield _uneven("--hosts", self.hosts, "--instances", self.instances)

    @property
    def processes(self) -> int:
        return self.replicas * self.stages

    @property
    def replicas_per_instance(self) -> int:
        return self.replicas // self.instances

    @property
    def instances_per_host(self) -> int:
        return self.instances // self.hosts

    def rank(self, replica: int, stage: int) -> int:
        assert 0 <= replica < self.replicas and 0 <= stage < self.stages
        return replica * self.stages + stage

    def coordinates(self, rank: int) -> Coordinates:
        assert 0 <= rank < self.processes
        replica, stage = divmod(rank, self.stages)
        instance = replica // self.replicas_per_instance
        return Coordinates(instance // self.instances_per_host, instance, replica, stage)

    def stage_ranks(self, replica: int) -> tuple[int, ...]:
        """The pipeline of one replica, first stage first."""
        return tuple(self.rank(replica, stage) for stage in range(self.stages))

    def replica_ranks(self, stage: int) -> tuple[int, ...]:
        """The copies of one stage: who averages gradients together."""
        return tuple(self.rank(replica, stage) for replica in range(self.replicas))

    def device_map(self, mapping: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The device of each stage; one each, in order, when nothing is given."""
        if mapping and len(mapping) != self.stages:
            devices, stages = counted(len(mapping), "device"), counted(self.stages, "stage")
            text = f"names {devices} for {stages}; name one for each stage"
            refuse([Problem("--device-mapping", text)])
        return mapping or tuple(range(self.stages))


def _uneven(parts: str, count: int, whole: str, total: int) -> Problem:
    """Blocks would differ in size; the way out is a divisor."""
    below = next(divisor for divisor in range(min(count, total), 0, -1) if total % divisor == 0)
    above = next((divisor for divisor in range(count, total + 1) if total % divisor == 0), None)
    nearest = f"{below} or {above}" if above else f"{below}"
    text = f"{count} does not divide {whole} {total}; use {parts} {nearest}"
    return Problem(parts, text)
