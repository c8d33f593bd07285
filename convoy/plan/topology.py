"""Hosts × instances × replicas × stages: one process for each stage of each replica.

rank = replica × stages + stage, so the stages of a replica are neighbors. Replicas are dealt to
instances (groups that share a loader) in equal blocks, and instances to hosts likewise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

from convoy.config.settings import Problem, refuse
from convoy.errors import ConfigError
from convoy.plan.schedules import schedule_of
from convoy.text import counted


@dataclass(frozen=True)
class BatchPlan:
    """How samples are grouped. `gradient_accumulation` is the micro-batches of one replica.

    `bn_span` replicas share their batch statistics. Their micro-batches of one moment are
    neighbors in the order of samples: what one micro-batch of N-fold size would hold.

        2 accumulated × 4 replicas    span 1: 01 | 23 | 45 | 67    span 2: 02 | 13 | 46 | 57
    """

    micro_batch_size: int
    gradient_accumulation: int
    replicas: int
    bn_span: int = 1

    def __post_init__(self) -> None:
        assert min(self.micro_batch_size, self.gradient_accumulation, self.replicas) >= 1
        assert self.bn_span >= 1 and self.replicas % self.bn_span == 0

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one update, all replicas together."""
        return self.gradient_accumulation * self.replicas

    @property
    def samples_per_update(self) -> int:
        return self.micro_batch_size * self.micro_batches

    def micro_batches_of(self, replica: int) -> range:
        """The micro-batches, counted over all replicas, that one replica computes, in order.

        A block of neighbors; with a span, every N-th of the block that its partners have together.
        """
        assert 0 <= replica < self.replicas
        span, place = divmod(replica, self.bn_span)
        block = self.gradient_accumulation * self.bn_span
        return range(span * block + place, (span + 1) * block, self.bn_span)

    def updates_per_epoch(self, samples: int) -> int:
        """Whole updates in one pass over the samples."""
        updates = samples // self.samples_per_update
        if updates == 0:
            raise ConfigError(
                f"one update needs {self.samples_per_update} samples "
                f"({self.micro_batch_size} micro × {self.gradient_accumulation} accumulated × "
                f"{self.replicas} replicas) but the source has {samples}; "
                "lower --micro-batch-size, --gradient-accumulation or --replicas"
            )
        return updates

    def total_updates(self, samples: int, epochs: float) -> int:
        """Whole updates of a run; part of an epoch counts, and there is at least one update."""
        if not (math.isfinite(epochs) and epochs > 0):
            raise ConfigError(f"--epoch must be a number above 0, got {epochs}")
        # The decimal as typed: 0.29 epochs of 100 updates are 29, in binary 28.99….
        exact = Fraction(str(epochs)) * self.updates_per_epoch(samples)
        return max(1, math.floor(exact))


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


MOST_STAGES = 4
MOST_REPLICAS = 4
_SCHEDULES = ("interleaved", "grouped", "sequential", "zero-bubble", "looped")
_ROUNDS = 2  # stages on each device where there are several


@dataclass(frozen=True)
class Layout:
    """One way to lay out a training."""

    stages: int = 1
    replicas: int = 1
    schedule: str = "interleaved"
    recompute: bool = False
    offload: bool = False
    sharding: bool = False
    workers: int = 0
    reduction: str = "exact"

    @property
    def stages_per_device(self) -> int:
        return _rounds(self.schedule)

    @property
    def processes(self) -> int:
        return self.stages // self.stages_per_device * self.replicas

    @property
    def exact(self) -> bool:
        """Whether the bits are promised to be those of one process."""
        return self.reduction == "exact" or self.replicas == 1

    def values(self, micro_batches: int) -> dict[str, Any]:
        """The options that ask for it, with so many micro-batches an update."""
        return {
            "shards": self.stages,
            "replicas": self.replicas,
            "gradient_accumulation": micro_batches // self.replicas,
            "pipeline_schedule": self.schedule,
            "stages_per_device": self.stages_per_device,
            "pipeline_splits": (),
            "device_mapping": (),
            "enable_recompute": self.recompute,
            "offload_optimizer": self.offload,
            "enable_optimizer_rts": self.sharding,
            "dataloader_worker": self.workers,
            "reduction": self.reduction,
        }


def all_layouts(micro_batches: int, layers: int, most_processes: int) -> list[Layout]:
    """One process first, then every shape that fits, then the quick sum over replicas."""
    shapes = [
        (stages, replicas)
        for stages, replicas in product(range(1, MOST_STAGES + 1), range(1, MOST_REPLICAS + 1))
        if stages <= layers
        and 1 < stages * replicas <= most_processes
        and micro_batches % replicas == 0
    ]
    layouts = [Layout(), Layout(recompute=True, offload=True, workers=2)]
    layouts += _with_choices(shapes, micro_batches)
    alone = [replicas for stages, replicas in shapes if stages == 1]
    return [*layouts, Layout(replicas=max(alone), reduction="fast")] if alone else layouts


def _with_choices(shapes: list[tuple[int, int]], micro_batches: int) -> Iterator[Layout]:
    """Recomputation, offload, sharding and workers change at different paces: all pairs occur."""
    number = 0
    for (stages, replicas), name in product(shapes, _SCHEDULES):
        if not _fits(name, stages, micro_batches // replicas):
            continue
        recompute, offload, sharding, workers = (number >> bit & 1 == 1 for bit in range(4))
        sharding = sharding and replicas > 1
        recompute = recompute and schedule_of(name, _rounds(name)).allows_recompute
        yield Layout(stages, replicas, name, recompute, offload, sharding, 2 * workers)
        number += 1


def _fits(schedule: str, stages: int, accumulation: int) -> bool:
    """One stage has no schedule: it is taken once."""
    if stages == 1:
        return schedule == "interleaved"
    try:
        schedule_of(schedule, _rounds(schedule)).check_count(stages, accumulation)
    except ConfigError:
        return False
    return True


def _rounds(schedule: str) -> int:
    return _ROUNDS if schedule == "looped" else 1


def crossings(layouts: list[Layout]) -> list[tuple[Layout, Layout]]:
    """From each of four shapes, saved there, to each other: the most different ones there are."""
    by_shape = {(one.stages, one.replicas): one for one in reversed(layouts) if one.exact}
    wanted = [(1, 1), (1, 4), (2, 2), (4, 1), (1, 2), (2, 1), (3, 1), (4, 2)]
    chosen = [by_shape[shape] for shape in wanted if shape in by_shape][:4]
    return [(before, after) for before in chosen for after in chosen if before is not after]
