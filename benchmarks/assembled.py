"""What the benchmarks measure, built as `convoy train` builds it.

The one file here that knows how a run is put together.
"""

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


def plan_of(values: Values) -> RunPlan:
    return plan_run(build_config(values))


def alone(plan: RunPlan) -> AbstractContextManager[ProcessContext]:
    """The context of a run's only process."""
    return join_run(World.single_process(), plan)


def context_of(plan: RunPlan, rank: int = 0, groups: ProcessGroups | None = None) -> ProcessContext:
    """That of a process that has joined other groups already, and decides for itself."""
    coordinates = plan.topology.coordinates(rank)
    return ProcessContext(
        plan, coordinates, groups or ProcessGroups.single_process(), ControlGroup(), CPU
    )


def parts_of(
    context: ProcessContext, source: Source | None = None, scratch: Path | None = None
) -> TrainingParts:
    """All that one process of a run trains with."""
    source = source or open_source(context.plan.config.data, context.plan.network, "train")
    return build(context, source, None, scratch or Path(gettempdir()))


def resident(parts: TrainingParts) -> tuple[Tensor, Tensor]:
    """Images and labels of the micro-batch that is on the device: synthetic data."""
    feed = parts.trainer.micro_batches.feed
    assert isinstance(feed, SyntheticFeed)
    images, labels = feed.batch
    assert images is not None and isinstance(labels, Tensor)
    return images, labels


def update_of(parts: TrainingParts, rate: float = 0.01) -> Callable[[], None]:
    """One update on that micro-batch, as often as an update of the plan accumulates."""

    def update() -> None:
        micro_batches = [resident(parts)] * parts.context.plan.batch.gradient_accumulation
        parts.trainer.update_step(micro_batches, StepContext(rate))

    return update


def updates_of(parts: TrainingParts) -> Iterator[object]:
    """All updates of the plan by the loop of a run; the caller works between two of them."""
    return parts.trainer.updates(0, StopRequest())
