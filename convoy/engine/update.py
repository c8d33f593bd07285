"""One weight update: pipeline, reduction, decision, optimizer step."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.batch import Mixed, Targets
from convoy.config.sections.optimizer import LossConfig
from convoy.data.loader import (
    LoaderOptions,
    MicroBatch,
    MicroBatchIndex,
    SyntheticFeed,
    TrainingFeed,
)
from convoy.engine.step_guard import StepDecision, StepGuard
from convoy.events import REASONS
from convoy.layers.norms import PendingStatistics
from convoy.numerics.gradients import GradientTree
from convoy.optim.ema import ExponentialMovingAverage
from convoy.optim.optimizer import Optimizer
from convoy.optim.update_rules import StepContext
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.parallel.executor import MicroBatchResult, Pipeline, PipelineInput
from convoy.parallel.replicas import Replicas


class CrossEntropy:
    """Mean cross-entropy; smoothing spreads a share e of the target evenly over K classes.

    over all     1 − e + e/K for the right class, e/K for each of the rest
    over others  1 − e for the right class, e/(K − 1) for each of the rest

    Of several labels each one counts with its share.
    """

    def __init__(self, config: LossConfig) -> None:
        self.share = config.label_smoothing
        self.spares_the_right = config.label_smoothing_over == "others"

    def __call__(self, logits: Tensor, targets: Targets) -> Tensor:
        smoothing = self._over_all(logits.shape[1])
        if isinstance(targets, Tensor) and smoothing <= 1:
            return F.cross_entropy(logits, targets, label_smoothing=smoothing)
        logs = F.log_softmax(logits, 1)
        loss = _shared(logs, targets) if isinstance(targets, Mixed) else F.nll_loss(logs, targets)
        return (1 - smoothing) * loss - smoothing * logs.mean() if smoothing else loss

    def _over_all(self, classes: int) -> float:
        """What would have to be spread over all classes to come to the same target.

        It may be above 1, where the right class is to be less likely than the others.
        """
        return self.share * classes / (classes - 1) if self.spares_the_right else self.share


def _shared(logs: Tensor, mixed: Mixed) -> Tensor:
    """The even share is the same for every label, and their shares add up to 1."""
    each = torch.stack([F.nll_loss(logs, one, reduction="none") for one in mixed.labels])
    return (each * mixed.shares).sum(0).mean()


@dataclass(frozen=True)
class UpdateShare:
    """Which micro-batches of each update pass through this process, and who has the others."""

    micros: Sequence[int]  # counted over all replicas
    control: ControlGroup
    ends: Sequence[int]  # the rank of each replica's last stage, where results arise
    places: Sequence[str] = ()  # of each rank, for people

    @classmethod
    def whole(cls, micro_batches: int) -> "UpdateShare":
        return cls(range(micro_batches), ControlGroup(), (0,))

    def agreed_reason(self, reason: str | None, update: int) -> str | None:
        """Why all processes stop, if one of them has to: a signal may reach only one."""
        own = 0 if reason is None else REASONS.index(reason) + 1
        highest = max(self.control.all_gather(SyncPoint.STOP, update, own))
        return REASONS[highest - 1] if highest else None

    def rows_of_all(self, rows: Tensor, micro_batches: int, update: int) -> Tensor:
        """Rows of our micro-batches, of one or more updates → those of all replicas, in order."""
        gathered = self.control.gather(SyncPoint.REPORT, update, rows)
        shape = (-1, micro_batches, rows.shape[1])  # (updates, micro-batches of one replica, …)
        by_replica = [gathered[rank].view(shape) for rank in self.ends]
        return torch.cat(by_replica, dim=1).flatten(0, 1)


def targets_of(batch: MicroBatch) -> Targets | None:
    """None where this process does not compare."""
    if batch.labels is None or batch.shares is None:
        return batch.labels
    return Mixed(batch.labels, batch.shares)


@dataclass(frozen=True)
class MicroBatches:
    """Our share of every update, out of a feed."""

    feed: TrainingFeed | SyntheticFeed
    options: LoaderOptions
    share: UpdateShare

    def of_updates(
        self, updates: range, options: LoaderOptions | None = None
    ) -> Generator[PipelineInput]:
        """Update by update; prepared ahead by the loader's workers, or by other options."""
        indices = (MicroBatchIndex(update, m) for update in updates for m in self.share.micros)
        with closing(self.feed.micro_batches(indices, options or self.options)) as batches:
            for batch in batches:
                yield batch.images, targets_of(batch)


@dataclass(frozen=True)
class ParameterGroup:
    """Weights of one stage and one dtype policy: their gradient sums and their optimizer."""

    gradients: GradientTree
    optimizer: Optimizer


def collect_gradients(groups: Iterable[ParameterGroup]) -> None:
    """Take what the backward pass of one micro-batch left in the weights of a stage."""
    for group in groups:
        group.gradients.collect()


@dataclass(eq=False)
class Update:
    """Spends an update's micro-batches on one optimizer step."""

    pipeline: Pipeline
    groups: Sequence[ParameterGroup]
    replicas: Replicas
    statistics: PendingStatistics
    guard: StepGuard = field(default_factory=StepGuard)
    ema: ExponentialMovingAverage | None = None

    def __post_init__(self) -> None:
        for group in self.groups:
            self.replicas.follow(group.gradients)

    def __call__(
        self, micro_batches: Iterable[PipelineInput], context: StepContext
    ) -> tuple[list[MicroBatchResult], StepDecision]:
        """Forward and backward for each micro-batch, then one step along the mean gradient if all
        processes find it finite.
        """
        with self.guard.watching():
            passed = self.pipeline.run(micro_batches, context.scale)
        gradients = [self.replicas.reduce(group.gradients) for group in self.groups]
        decision = self.guard.decide(gradients, passed, context)
        if decision.apply:
            self._apply(gradients, context)
        self._clear()
        return passed, decision

    def _apply(self, gradients: Sequence[Tensor], context: StepContext) -> None:
        for group, gradient in zip(self.groups, gradients, strict=True):
            group.optimizer.step(gradient, context)
            self.replicas.share(group.optimizer.flat.values)
        self.statistics.apply(self.replicas.gather_statistics)
        if self.ema is not None:
            self.ema.update()

    def repeat(self, micro_batches: Iterable[PipelineInput], context: StepContext) -> None:
        """Pass the micro-batches of an update that changed nothing once more, with all traps set.

        Gradients are not reduced: the first bad value arose before.
        """
        traps = self.guard.traps
        assert traps is not None, "nothing would be found"
        traps.go_back_to(context.update)
        with traps.set():
            self.pipeline.run(micro_batches, context.scale)
        self._clear()

    def _clear(self) -> None:
        """Gradients and statistics are done with, whether they were used or not."""
        self.statistics.discard()
        for group in self.groups:
            group.gradients.clear()
