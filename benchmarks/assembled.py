"""Builds plans, networks and updates as `convoy train` does, for the other benchmarks."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from torch import Tensor

from convoy.config.schema import build_config
from convoy.data.loader import SyntheticFeed
from convoy.data.source import Source
from convoy.data.sources.open import open_source
from convoy.events import StopRequest
from convoy.launch.world import World
from convoy.optim.update_rules import StepContext
from convoy.parallel.control import ControlGroup
from convoy.parallel.process_groups import ProcessGroups
from convoy.planning.plan import RunPlan, plan_run
from convoy.run.build import TrainingParts, build
from convoy.run.process import ProcessContext, join_run

CPU = torch.device("cpu")
Values = dict[str, Any]


def make_plan(values: Values) -> RunPlan:
    return plan_run(build_config(values))


def single_process(plan: RunPlan) -> AbstractContextManager[ProcessContext]:
    """The context of a run with a single process."""
    return join_run(World.single_process(), plan)


def make_context(
    plan: RunPlan, rank: int = 0, groups: ProcessGroups | None = None
) -> ProcessContext:
    """The context of a process that has joined its process groups; it has no control group."""
    coordinates = plan.topology.coordinates(rank)
    return ProcessContext(
        plan, coordinates, groups or ProcessGroups.single_process(), ControlGroup(), CPU
    )


def build_parts(
    context: ProcessContext, source: Source | None = None, scratch: Path | None = None
) -> TrainingParts:
    """Build network, optimizer, pipeline and replicas of one process."""
    source = source or open_source(context.plan.config.data, context.plan.network, "train")
    return build(context, source, None, scratch or Path(gettempdir()))


def resident_batch(parts: TrainingParts) -> tuple[Tensor, Tensor]:
    """Images and labels of the synthetic micro-batch on the device."""
    feed = parts.trainer.micro_batches.feed
    assert isinstance(feed, SyntheticFeed)
    images, labels = feed.batch
    assert images is not None and isinstance(labels, Tensor)
    return images, labels


def make_update(parts: TrainingParts, rate: float = 0.01) -> Callable[[], None]:
    """A function that performs one update; every micro-batch is the resident one."""

    def update() -> None:
        micro_batches = [resident_batch(parts)] * parts.context.plan.batch.gradient_accumulation
        parts.trainer.update_step(micro_batches, StepContext(rate))

    return update


def run_updates(parts: TrainingParts) -> Iterator[object]:
    """All updates of the plan, by the loop of a run; yields after each."""
    return parts.trainer.updates(0, StopRequest())
