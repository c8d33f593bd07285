"""One weight update."""

from collections.abc import Callable, Iterable

from torch import Tensor

from convoy.numerics.gradients import GradientTree
from convoy.optim.optimizers import Sgd
from convoy.parallel.pipeline import Passed, Pipeline
from convoy.parallel.replicas import Alone


class Update:
    """Spends an update's micro-batches on one change of the weights."""

    def __init__(
        self,
        pipeline: Pipeline,
        gradients: GradientTree,
        replicas: Alone,
        optimizer: Sgd,
        absorb_statistics: Callable[[], None],
    ) -> None:
        self.pipeline = pipeline
        self.gradients = gradients
        self.replicas = replicas
        self.optimizer = optimizer
        self.absorb_statistics = absorb_statistics

    def __call__(self, micro_batches: Iterable[tuple[Tensor, Tensor]], rate: float) -> list[Passed]:
        """Forward and backward for each micro-batch, then one step along the mean gradient."""
        passed = self.pipeline.run(micro_batches)
        gradients = self.gradients.mean()
        self.replicas.average(gradients)
        self.optimizer.step(gradients, rate)
        self.absorb_statistics()
        return passed
