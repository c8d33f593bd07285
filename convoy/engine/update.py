"""One weight update."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from convoy.numerics.gradients import GradientTree
from convoy.optim.optimizers import Sgd
from convoy.parallel.pipeline import MicroBatch, Passed
from convoy.parallel.replicas import Replicas

Gather = Callable[[Tensor], Tensor]


class Passage(Protocol):
    """A pipeline, of one stage or of several."""

    def run(self, micro_batches: Iterable[MicroBatch]) -> list[Passed]:
        """Forward and backward for each micro-batch."""

    @property
    def stash_seen(self) -> int:
        """The most micro-batches between their forward and their backward so far."""


@dataclass(frozen=True)
class Holding:
    """The weights of one stage: how their gradients are summed, and how they change."""

    gradients: GradientTree
    optimizer: Sgd


class Update:
    """Spends an update's micro-batches on one change of the weights."""

    def __init__(
        self,
        pipeline: Passage,
        holdings: Sequence[Holding],
        replicas: Replicas,
        absorb_statistics: Callable[[Gather], None],
    ) -> None:
        self.pipeline = pipeline
        self.holdings = list(holdings)
        self.replicas = replicas
        self.absorb_statistics = absorb_statistics
        for one in self.holdings:
            replicas.follow(one.gradients)

    def __call__(self, micro_batches: Iterable[MicroBatch], rate: float) -> list[Passed]:
        """Forward and backward for each micro-batch, then one step along the mean gradient."""
        passed = self.pipeline.run(micro_batches)
        for one in self.holdings:
            one.optimizer.step(self.replicas.reduce(one.gradients), rate)
            self.replicas.share(one.optimizer.flat.values)
            one.gradients.clear()
        self.absorb_statistics(self.replicas.gather_statistics)
        return passed
