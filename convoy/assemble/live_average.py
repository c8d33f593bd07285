"""The average that a run takes along: measured beside its weights, kept in its checkpoints."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from convoy.assemble.network import Network
from convoy.config.sections.keeping import AverageConfig
from convoy.engine.update import Gather
from convoy.events import Validated
from convoy.optim.averaging import RunningAverage
from convoy.optim.optimizer import Optimizer
from convoy.parallel.optimizer_state import gatherer
from convoy.parallel.replicas import Replicas

Absorb = Callable[[Gather], None]


class LiveAverage:
    """Of the stages of one process. All processes must ask it the same, at the same time."""

    def __init__(
        self,
        config: AverageConfig,
        network: Network,
        optimizers: Sequence[Optimizer],
        replicas: Replicas,
    ) -> None:
        self.network = network
        self.optimizers = optimizers
        self.replicas = replicas
        self.running: RunningAverage | None = None
        if config.ema_decay:
            moved = {name for one in optimizers for name in one.flat.weights}
            others = {name: one for name, one in network.tensors().items() if name not in moved}
            self.running = RunningAverage(optimizers, others, config.ema_decay)

    @property
    def begun(self) -> bool:
        """Whether there is an average by now."""
        return self.running is not None and self.running.begun

    def behind(self, absorb: Absorb) -> Absorb:
        """What ends an update, and then lets the average follow: one that is skipped does not."""
        running = self.running
        if running is None:
            return absorb

        def absorb_and_follow(gather: Gather) -> None:
            absorb(gather)
            running.follow()

        return absorb_and_follow

    def named(self) -> dict[str, Tensor]:
        """By the names of the model, as far as this process has them; nothing before it begins."""
        if self.running is None or not self.running.begun:
            return {}
        return self.running.named(lambda one: gatherer(self.replicas, one.flat.elements))

    def load(self, averages: Mapping[str, Tensor]) -> None:
        """Go on with those of a checkpoint."""
        if self.running is not None:
            self.running.load(averages)

    def beside(
        self, validate: Callable[[int, float], Validated], update: int, epoch: float
    ) -> Validated:
        """The measure of the weights, with that of their average."""
        own = validate(update, epoch)
        if not self.begun:
            return own
        with self._in_their_place():
            other = validate(update, epoch)
        return replace(
            own, average_top1=other.top1, average_top5=other.top5, average_loss=other.loss
        )

    @contextmanager
    def _in_their_place(self) -> Iterator[None]:
        """The network has the average for weights, in the numbers that it uses; then its own."""
        own = {name: one.clone() for name, one in self.network.tensors().items()}
        self.network.load(self.named())
        for one in self.optimizers:
            one.round_used()
        try:
            yield
        finally:
            self.network.load(own)
