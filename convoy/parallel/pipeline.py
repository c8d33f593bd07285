"""Carries an update's micro-batches through one stage: forward, loss, backward."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from convoy.parallel.targets import Targets, expected

Loss = Callable[[Tensor, Targets], Tensor]
# The first stage needs the images, the last one the labels; both may be left out elsewhere.
MicroBatch = tuple[Tensor | None, Targets | None]


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

    stash_seen = 1  # a micro-batch goes backward before the next one comes

    def run(self, micro_batches: Iterable[MicroBatch], scale: float = 1.0) -> list[Passed]:
        """Train on each micro-batch; `after_backward` takes the gradients of each, so many times
        too large."""
        self.stage.train()
        return [self._run_one(images, labels, scale) for images, labels in micro_batches]

    def _run_one(self, images: Tensor | None, labels: Targets | None, scale: float) -> Passed:
        assert images is not None and labels is not None, "a lone stage is the first and the last"
        (logits,) = self.stage(images)
        loss = self.loss(logits, labels)
        scaled(loss, scale).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.after_backward()
        return passed(logits, labels, loss)


class LoneInference:
    """Forward-only passes through one stage that holds the whole network."""

    def __init__(self, stage: nn.Module) -> None:
        self.stage = stage

    def run(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        """The logits of each batch; the network is left as it was."""
        was_training = self.stage.training
        self.stage.eval()
        try:
            for images in batches:
                assert images is not None, "a lone stage is the first"
                yield self._forward(images)
        finally:
            self.stage.train(was_training)

    @torch.inference_mode()
    def _forward(self, images: Tensor) -> Tensor:
        logits: Tensor
        (logits,) = self.stage(images)
        return logits


def scaled(loss: Tensor, scale: float) -> Tensor:
    """What goes backward; the loss as it is stays what is told."""
    return loss if scale == 1 else loss * scale


def passed(logits: Tensor, labels: Targets, loss: Tensor) -> Passed:
    """The result of one micro-batch, without its graph."""
    right = (logits.detach().argmax(1) == expected(labels)).sum()
    return Passed(loss.detach(), right, len(logits))
