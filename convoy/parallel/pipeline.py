"""Carries an update's micro-batches through one stage: forward, loss, backward."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
# The first stage needs the images, the last one the labels; both may be left out elsewhere.
MicroBatch = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Passed:
    """What one micro-batch left behind. Stays on the device until somebody reads it."""

    loss: Tensor  # mean over the micro-batch
    right: Tensor  # how many answers were right
    samples: int


class Pipeline:
    """One stage holding the whole network: its schedule is forward, backward, forward, …"""

    def __init__(self, stage: nn.Module, loss: Loss, after_backward: Callable[[], None]) -> None:
        self.stage = stage
        self.loss = loss
        self.after_backward = after_backward

    def run(self, micro_batches: Iterable[MicroBatch]) -> list[Passed]:
        """Train on each micro-batch; `after_backward` takes the gradients of each."""
        self.stage.train()
        return [self._run_one(images, labels) for images, labels in micro_batches]

    def _run_one(self, images: Tensor | None, labels: Tensor | None) -> Passed:
        assert images is not None and labels is not None, "a lone stage is the first and the last"
        (logits,) = self.stage(images)
        loss = self.loss(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.after_backward()
        return passed(logits, labels, loss)


def passed(logits: Tensor, labels: Tensor, loss: Tensor) -> Passed:
    """The result of one micro-batch, without its graph."""
    right = (logits.detach().argmax(1) == labels).sum()
    return Passed(loss.detach(), right, len(labels))
