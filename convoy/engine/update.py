"""One update: pipeline, gradient reduction, step decision, optimizer step."""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.batch import MixedTargets, Targets
from convoy.config.sections.training import LossConfig
from convoy.data.loader import (
    LoaderOptions,
    MicroBatch,
    MicroBatchIndex,
    SyntheticFeed,
    TrainingFeed,
)
from convoy.engine.step_guard import StepDecision, StepGuard
from convoy.events import STOP_REASONS
from convoy.layers.norms import PendingStatistics
from convoy.numerics.gradients import GradientTree
from convoy.optim.ema import ExponentialMovingAverage
from convoy.optim.optimizer import Optimizer
from convoy.optim.update_rules import StepContext
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.parallel.executor import MicroBatchResult, PipelineInput, TrainingPipeline
from convoy.parallel.replicas import Replicas


class CrossEntropy:
    """Mean cross-entropy with label smoothing e over K classes.

    over all     1 − e + e/K for the target class, e/K for each of the rest
    over others  1 − e for the target class, e/(K − 1) for each of the rest

    Mixed targets are the weighted mean over their labels.
    """

    def __init__(self, config: LossConfig) -> None:
        self.label_smoothing = config.label_smoothing
        self.smooths_others_only = config.label_smoothing_over == "others"

    def __call__(self, logits: Tensor, targets: Targets) -> Tensor:
        smoothing, classes = self.label_smoothing, logits.shape[1]
        if self.smooths_others_only:
            # The equivalent smoothing over all classes. It may exceed 1, if the target class is to
            # be less likely than the others.
            smoothing = self.label_smoothing * classes / (classes - 1)
        if isinstance(targets, Tensor) and smoothing <= 1:
            return F.cross_entropy(logits, targets, label_smoothing=smoothing)
        logs = F.log_softmax(logits, 1)
        if isinstance(targets, MixedTargets):
            loss = _mixed_nll_loss(logs, targets)
        else:
            loss = F.nll_loss(logs, targets)
        return (1 - smoothing) * loss - smoothing * logs.mean() if smoothing else loss


def _mixed_nll_loss(logs: Tensor, mixed: MixedTargets) -> Tensor:
    """Weighted mean over labels; the weights of a sample add up to 1."""
    losses = torch.stack([F.nll_loss(logs, labels, reduction="none") for labels in mixed.labels])
    return (losses * mixed.weights).sum(0).mean()


@dataclass(frozen=True)
class UpdateShare:
    """The micro-batches of each update that this process runs, and the ranks of the others."""

    micro_batches: Sequence[int]  # numbered over all replicas
    control: ControlGroup
    last_stage_ranks: Sequence[int]  # one per replica; the last stage has the results
    rank_descriptions: Sequence[str] = ()  # for messages

    def agree_on_stop(self, reason: str | None, update: int) -> str | None:
        """The stop reason of any process, on all of them: a signal may reach only one process."""
        code = 0 if reason is None else STOP_REASONS.index(reason) + 1
        highest = max(self.control.all_gather(SyncPoint.STOP, update, code))
        return STOP_REASONS[highest - 1] if highest else None

    def all_gather_rows(self, rows: Tensor, micro_batches: int, update: int) -> Tensor:
        """Gather one row per micro-batch, of one or more updates, from all replicas, in order."""
        gathered = self.control.all_gather_tensor(SyncPoint.METRICS, update, rows)
        shape = (-1, micro_batches, rows.shape[1])  # (updates, micro-batches of one replica, …)
        by_replica = [gathered[rank].view(shape) for rank in self.last_stage_ranks]
        return torch.cat(by_replica, dim=1).flatten(0, 1)


@dataclass(frozen=True)
class UpdateBatches:
    """Reads this process's micro-batches of every update from a feed."""

    feed: TrainingFeed | SyntheticFeed
    options: LoaderOptions
    share: UpdateShare

    def for_updates(
        self, updates: range, options: LoaderOptions | None = None
    ) -> Generator[MicroBatch]:
        """Yield micro-batches update by update; `options` replaces the usual loader options."""
        indices = (
            MicroBatchIndex(update, m) for update in updates for m in self.share.micro_batches
        )
        return self.feed.micro_batches(indices, options or self.options)


@dataclass(frozen=True)
class ParameterGroup:
    """Weights of one stage and one dtype policy: their gradient sums and their optimizer."""

    gradients: GradientTree
    optimizer: Optimizer


def collect_gradients(groups: Iterable[ParameterGroup]) -> None:
    for group in groups:
        group.gradients.collect()


@dataclass(eq=False)
class Update:
    """Runs the micro-batches of an update and one optimizer step."""

    pipeline: TrainingPipeline
    groups: Sequence[ParameterGroup]
    replicas: Replicas
    statistics: PendingStatistics
    guard: StepGuard = field(default_factory=StepGuard)
    ema: ExponentialMovingAverage | None = None

    def __post_init__(self) -> None:
        for group in self.groups:
            self.replicas.overlap_with_backward(group.gradients)

    def __call__(
        self, micro_batches: Iterable[PipelineInput], context: StepContext
    ) -> tuple[list[MicroBatchResult], StepDecision]:
        """Run forward and backward for each micro-batch, then one optimizer step if the gradient is
        finite on all processes.
        """
        with self.guard.watch_context():
            results = self.pipeline.run(micro_batches, context.loss_scale)
        gradients = [self.replicas.reduce(group.gradients) for group in self.groups]
        decision = self.guard.decide(gradients, results, context)
        if decision.apply:
            for group, gradient in zip(self.groups, gradients, strict=True):
                group.optimizer.step(gradient, context)
                self.replicas.all_gather_shards(group.optimizer.flat_params.values)
            self.statistics.apply(self.replicas.all_gather_statistics)
            if self.ema is not None:
                self.ema.update()
        self._clear()
        return results, decision

    def rerun_with_traps(
        self, micro_batches: Iterable[PipelineInput], context: StepContext
    ) -> None:
        """Run the micro-batches of an update that was not applied again, with all traps armed.

        Gradients are not reduced: the first non-finite value occurs earlier.
        """
        traps = self.guard.traps
        assert traps is not None, "the step guard has no traps"
        traps.rewind_to(context.update)
        with traps.armed():
            self.pipeline.run(micro_batches, context.loss_scale)
        self._clear()

    def _clear(self) -> None:
        """Discard gradients and pending statistics, whether they were used or not."""
        self.statistics.discard()
        for group in self.groups:
            group.gradients.clear()
