"""Hosts × instances × replicas × stages: one process for each stage of each replica.

rank = replica × stages + stage, so the stages of a replica have consecutive ranks. Replicas are
assigned to instances (groups that share a loader) in equal blocks, and instances to hosts likewise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

from convoy.config.schema import Problem, raise_problems
from convoy.errors import ConfigError
from convoy.planning.schedules import Schedule, make_schedule
from convoy.text import pluralize


@dataclass(frozen=True)
class BatchPlan:
    """How samples are grouped. `gradient_accumulation` counts micro-batches per replica.

    `bn_span` replicas share batch statistics. Their simultaneous micro-batches are consecutive in
    sample order, like one micro-batch of N times the size.

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
        """Micro-batches per update over all replicas."""
        return self.gradient_accumulation * self.replicas

    @property
    def samples_per_update(self) -> int:
        return self.micro_batch_size * self.micro_batches

    def micro_batches_of(self, replica: int) -> range:
        """Global indices of the micro-batches that one replica computes, in order.

        A contiguous block; with `bn_span` N, every N-th of the block of its group.
        """
        assert 0 <= replica < self.replicas
        group, index = divmod(replica, self.bn_span)
        block = self.gradient_accumulation * self.bn_span
        return range(group * block + index, (group + 1) * block, self.bn_span)

    def updates_per_epoch(self, samples: int) -> int:
        """Complete updates in one pass over the samples."""
        updates = samples // self.samples_per_update
        if updates == 0:
            raise ConfigError(
                f"one update needs {self.samples_per_update} samples "
                f"(micro-batch size {self.micro_batch_size} × "
                f"gradient accumulation {self.gradient_accumulation} × "
                f"{pluralize(self.replicas, 'replica')}) but the dataset has {samples}; "
                "lower --micro-batch-size, --gradient-accumulation or --replicas"
            )
        return updates

    def total_updates(self, samples: int, epochs: float) -> int:
        """Complete updates of a run, which can be a fraction of an epoch; at least one."""
        if not (math.isfinite(epochs) and epochs > 0):
            raise ConfigError(f"--epochs must be a number above 0, got {epochs}")
        # The decimal as typed: 0.29 epochs × 100 updates is 29, in binary floats 28.99….
        exact = Fraction(str(epochs)) * self.updates_per_epoch(samples)
        return max(1, math.floor(exact))


@dataclass(frozen=True)
class Coordinates:
    """Replica and stage of one process."""

    replica: int
    stage: int


@dataclass(frozen=True)
class TopologyPlan:
    """Number of hosts, instances, replicas and stages, each over the whole run."""

    hosts: int
    instances: int
    replicas: int
    stages: int

    def __post_init__(self) -> None:
        assert min(self.hosts, self.instances, self.replicas, self.stages) >= 1
        raise_problems(self._problems())

    def _problems(self) -> Iterator[Problem]:
        if self.replicas % self.instances:
            yield _divisor_problem("--instances", self.instances, "--replicas", self.replicas)
        if self.instances % self.hosts:
            yield _divisor_problem("--hosts", self.hosts, "--instances", self.instances)

    @property
    def processes(self) -> int:
        return self.replicas * self.stages

    def coordinates(self, rank: int) -> Coordinates:
        assert 0 <= rank < self.processes
        return Coordinates(*divmod(rank, self.stages))

    def stage_ranks(self, replica: int) -> tuple[int, ...]:
        """Ranks of the stages of one replica, in order."""
        return tuple(range(replica * self.stages, (replica + 1) * self.stages))

    def replica_ranks(self, stage: int) -> tuple[int, ...]:
        """Ranks of the replicas of one stage (its data-parallel group)."""
        return tuple(range(stage, self.processes, self.stages))

    def device_map(self, mapping: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The device of each stage; by default stage i runs on device i."""
        if mapping and len(mapping) != self.stages:
            devices, stages = pluralize(len(mapping), "device"), pluralize(self.stages, "stage")
            message = f"lists {devices} for {stages}; list one per stage"
            raise_problems([Problem("--device-mapping", message)])
        return mapping or tuple(range(self.stages))


def _divisor_problem(parts: str, count: int, whole: str, total: int) -> Problem:
    """Report a count that does not divide a total, with the nearest divisors."""
    below = next(divisor for divisor in range(min(count, total), 0, -1) if total % divisor == 0)
    above = next((divisor for divisor in range(count, total + 1) if total % divisor == 0), None)
    nearest = f"{below} or {above}" if above else f"{below}"
    return Problem(parts, f"{count} does not divide {whole} {total}; use {parts} {nearest}")


MAX_STAGES = 4
MAX_REPLICAS = 4
_SCHEDULES = ("interleaved", "grouped", "sequential", "zero-bubble", "looped")
_LOOPED_STAGES_PER_DEVICE = 2


@dataclass(frozen=True)
class Layout:
    """A parallel layout of a training run."""

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
        return _stages_per_device(self.schedule)

    @property
    def processes(self) -> int:
        return self.stages // self.stages_per_device * self.replicas

    @property
    def is_bit_exact(self) -> bool:
        """Whether results are bit-identical to those of a single process."""
        return self.reduction == "exact" or self.replicas == 1

    def option_values(self, micro_batches: int) -> dict[str, Any]:
        """The options for this layout with `micro_batches` per update."""
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


def all_layouts(micro_batches: int, layers: int, max_processes: int) -> list[Layout]:
    """One process, then every shape that fits, then the fast reduction over replicas."""
    shapes = [
        (stages, replicas)
        for stages, replicas in product(range(1, MAX_STAGES + 1), range(1, MAX_REPLICAS + 1))
        if stages <= layers
        and 1 < stages * replicas <= max_processes
        and micro_batches % replicas == 0
    ]
    layouts = [Layout(), Layout(recompute=True, offload=True, workers=2)]
    layouts += _layouts_of_shapes(shapes, micro_batches)
    single_stage = [replicas for stages, replicas in shapes if stages == 1]
    if single_stage:
        layouts.append(Layout(replicas=max(single_stage), reduction="fast"))
    return layouts


def _layouts_of_shapes(shapes: list[tuple[int, int]], micro_batches: int) -> Iterator[Layout]:
    """Vary recomputation, offload, sharding and workers like binary digits, so all pairs occur."""
    number = 0
    for (stages, replicas), name in product(shapes, _SCHEDULES):
        schedule = make_schedule(name, _stages_per_device(name))
        if not _is_layout_valid(schedule, stages, micro_batches // replicas):
            continue
        recompute, offload, sharding, workers = (number >> bit & 1 == 1 for bit in range(4))
        sharding = sharding and replicas > 1
        recompute = recompute and schedule.allows_recompute
        yield Layout(stages, replicas, name, recompute, offload, sharding, 2 * workers)
        number += 1


def _is_layout_valid(schedule: Schedule, stages: int, accumulation: int) -> bool:
    """Whether the schedule accepts the counts; a single stage occurs with one schedule only."""
    if stages == 1:
        return schedule.name == "interleaved"
    try:
        schedule.check_micro_batches(stages, accumulation)
    except ConfigError:
        return False
    return True


def _stages_per_device(schedule: str) -> int:
    return _LOOPED_STAGES_PER_DEVICE if schedule == "looped" else 1


def resume_pairs(layouts: list[Layout]) -> list[tuple[Layout, Layout]]:
    """Pairs of up to four different shapes: save in the first, resume in the second."""
    exact = [layout for layout in reversed(layouts) if layout.is_bit_exact]
    by_shape = {(layout.stages, layout.replicas): layout for layout in exact}
    preferred = [(1, 1), (1, 4), (2, 2), (4, 1), (1, 2), (2, 1), (3, 1), (4, 2)]
    chosen = [by_shape[shape] for shape in preferred if shape in by_shape][:4]
    return [(first, second) for first in chosen for second in chosen if first is not second]
