"""One weight update."""

from collections.abc import Callable, Iterable
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


class Update:
    """Spends an update's micro-batches on one change of the weights."""

    def __init__(
        self,
        pipeline: Passage,
        gradients: GradientTree,
        replicas: Replicas,
        optimizer: Sgd,
        absorb_statistics: Callable[[Gather], None],
    ) -> None:
        self.pipeline = pipeline
        self.gradients = gradients
        self.replicas = replicas
        self.optimizer = optimizer
        self.absorb_statistics = absorb_statistics
        replicas.follow(gradients)

    def __call__(self, micro_batches: Iterable[MicroBatch], rate: float) -> list[Passed]:
        """Forward and backward for each micro-batch, then one step along the mean gradient."""
        passed = self.pipeline.run(micro_batches)
        self.optimizer.step(self.replicas.reduce(self.gradients), rate)
        self.replicas.share(self.optimizer.flat.values)
        self.gradients.clear()
        self.absorb_statistics(self.replicas.gather_statistics)
        return passed
