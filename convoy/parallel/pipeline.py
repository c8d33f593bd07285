"""Carries an update's micro-batches through the stages: forward, loss, backward."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from convoy.parallel.slice import Slice

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Passed:
    """What one micro-batch left behind. Stays on the device until somebody reads it."""

    loss: Tensor  # mean over the micro-batch
    right: Tensor  # how many answers were right
    samples: int


class Pipeline:
    """One stage holding the whole network: its schedule is forward, backward, forward, …"""

    def __init__(self, stage: Slice, loss: Loss, after_backward: Callable[[], None]) -> None:
        self.stage = stage
        self.loss = loss
        self.after_backward = after_backward

    def run(self, micro_batches: Iterable[tuple[Tensor, Tensor]]) -> list[Passed]:
        """Train on each micro-batch; `after_backward` takes the gradients of each."""
        self.stage.train()
        return [self._run_one(images, labels) for images, labels in micro_batches]

    def _run_one(self, images: Tensor, labels: Tensor) -> Passed:
        (logits,) = self.stage(images)
        loss = self.loss(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.after_backward()
        right = (logits.detach().argmax(1) == labels).sum()
        return Passed(loss.detach(), right, len(labels))
