"""One weight update: pipeline, reduction, decision, optimizer step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from convoy.engine.step_guard import StepDecision, StepGuard
from convoy.layers.norms import PendingStatistics
from convoy.numerics.gradients import GradientTree
from convoy.optim.ema import ExponentialMovingAverage
from convoy.optim.optimizer import Optimizer
from convoy.optim.update_rules import StepContext
from convoy.parallel.executor import MicroBatch, MicroBatchResult, Pipeline
from convoy.parallel.replicas import Replicas


@dataclass(frozen=True)
class ParameterGroup:
    """Weights of one stage and one dtype policy: their gradient sums and their optimizer."""

    gradients: GradientTree
    optimizer: Optimizer


def collect_gradients(groups: Iterable[ParameterGroup]) -> None:
    """Take what the backward pass of one micro-batch left in the weights of a stage."""
    for group in groups:
        group.gradients.collect()


class Update:
    """Spends an update's micro-batches on one optimizer step."""

    def __init__(
        self,
        pipeline: Pipeline,
        groups: Sequence[ParameterGroup],
        replicas: Replicas,
        statistics: PendingStatistics,
        guard: StepGuard | None = None,
        ema: ExponentialMovingAverage | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.groups = list(groups)
        self.replicas = replicas
        self.statistics = statistics
        self.guard = guard or StepGuard()
        self.ema = ema
        for group in self.groups:
            replicas.follow(group.gradients)

    def __call__(
        self, micro_batches: Iterable[MicroBatch], context: StepContext
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

    def repeat(self, micro_batches: Iterable[MicroBatch], context: StepContext) -> None:
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
