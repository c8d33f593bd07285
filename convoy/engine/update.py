"""One weight update."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from convoy.engine.verdict import Judge, Ruling
from convoy.numerics.gradients import GradientTree
from convoy.optim.optimizer import Optimizer
from convoy.optim.step import Step
from convoy.parallel.pipeline import MicroBatch, Passed
from convoy.parallel.replicas import Replicas

Gather = Callable[[Tensor], Tensor]


class Passage(Protocol):
    """A pipeline, of one stage or of several."""

    def run(self, micro_batches: Iterable[MicroBatch], scale: float = 1.0) -> list[Passed]:
        """Forward and backward for each micro-batch, with a loss so many times too large."""

    @property
    def stash_seen(self) -> int:
        """The most micro-batches between their forward and their backward so far."""


@dataclass(frozen=True)
class Holding:
    """Weights of one stage and one kind: how their gradients are summed, and how they change."""

    gradients: GradientTree
    optimizer: Optimizer


def collect_all(holdings: Iterable[Holding]) -> None:
    """Take what the backward pass of one micro-batch left in the weights of a stage."""
    for one in holdings:
        one.gradients.collect()


def _do_nothing() -> None:
    """Where no statistics wait."""


class Update:
    """Spends an update's micro-batches on one change of the weights."""

    def __init__(
        self,
        pipeline: Passage,
        holdings: Sequence[Holding],
        replicas: Replicas,
        absorb_statistics: Callable[[Gather], None],
        forget_statistics: Callable[[], None] = _do_nothing,
        judge: Judge | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.holdings = list(holdings)
        self.replicas = replicas
        self.absorb_statistics = absorb_statistics
        self.forget_statistics = forget_statistics
        self.judge = judge or Judge()
        for one in self.holdings:
            replicas.follow(one.gradients)

    def __call__(self, micro_batches: Iterable[MicroBatch], at: Step) -> list[Passed]:
        """Forward and backward for each micro-batch, then one step along the mean gradient, if
        all processes find it sound."""
        with self.judge.watching():
            passed = self.pipeline.run(micro_batches, at.scale)
        gradients = [self.replicas.reduce(one.gradients) for one in self.holdings]
        if self.judge(gradients, passed, at) is Ruling.APPLY:
            self._apply(gradients, at)
        self._clear()
        return passed

    def _apply(self, gradients: Sequence[Tensor], at: Step) -> None:
        for one, gradient in zip(self.holdings, gradients, strict=True):
            one.optimizer.step(gradient, at)
            self.replicas.share(one.optimizer.flat.values)
        self.absorb_statistics(self.replicas.gather_statistics)

    def again(self, micro_batches: Iterable[MicroBatch], at: Step) -> None:
        """Pass the micro-batches of an update that changed nothing once more, with all traps set.

        Gradients are not reduced: what is wrong is so before.
        """
        traps = self.judge.traps
        assert traps is not None, "nothing would be found"
        traps.go_back_to(at.update)
        with traps.set():
            self.pipeline.run(micro_batches, at.scale)
        self._clear()

    def _clear(self) -> None:
        """Nothing waits any more, whether it was used or not."""
        self.forget_statistics()
        for one in self.holdings:
            one.gradients.clear()
