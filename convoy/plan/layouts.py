"""Many ways to lay out one training: the same micro-batches, shared out differently.

In: the micro-batches of an update and the most processes. Out: layouts that cover every pair of
stages and replicas with every schedule that fits, and go through the other choices in turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from convoy.errors import ConfigError
from convoy.plan.schedules import schedule_of

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
