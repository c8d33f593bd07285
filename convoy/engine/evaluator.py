"""Accuracy and loss over a source, every sample exactly once."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.data.feed import Batch, Hands, ValidationFeed
from convoy.parallel.council import Council, Matter


@dataclass(frozen=True)
class Score:
    """Shares and the mean over all samples, whatever the batches were."""

    samples: int
    top1: float
    top5: float
    loss: float
    batch_seconds: tuple[float, ...] = field(default=(), compare=False)  # of this process


class Answers(Protocol):
    """Forward passes through one stage or several."""

    def run(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        """The logits of each batch where the last stage is, None elsewhere."""


@dataclass(frozen=True)
class Share:
    """Which batches a process takes: its replica's, in turn with the other replicas."""

    replica: int
    replicas: int
    council: Council


def evaluate(
    answers: Answers, feed: ValidationFeed, hands: Hands, share: Share, update: int
) -> Score:
    """Run the whole source through the network as it would be used; leave it as it was."""
    rows = torch.zeros(feed.count, 3, dtype=torch.float64)
    numbers = range(share.replica, feed.count, share.replicas)
    waiting: deque[tuple[Batch, float]] = deque()
    seconds: list[float] = []
    with closing(feed.batches(numbers, hands)) as batches:
        images = _remembered(batches, waiting)
        for number, logits in zip(numbers, answers.run(images), strict=True):
            batch, arrived = waiting.popleft()
            if logits is not None:
                rows[number] = _row(logits, batch)  # on the host now: the device has finished
            seconds.append(monotonic() - arrived)
    parts = share.council.gather(Matter.MEASURE, update, rows)
    return _score(parts, len(feed.source), tuple(seconds))


def _remembered(
    batches: Iterable[Batch], waiting: deque[tuple[Batch, float]]
) -> Iterator[Tensor | None]:
    """The images go ahead; the labels are wanted when the logits come."""
    for batch in batches:
        waiting.append((batch, monotonic()))
        yield batch.images


@torch.inference_mode()
def _row(logits: Tensor, batch: Batch) -> Tensor:
    """Right at first, right among five, sum of the losses; padding does not count."""
    assert batch.labels is not None, "the last stage needs labels"
    logits, labels = logits[: batch.samples], batch.labels[: batch.samples]
    # With fewer than six classes everything is among the first five.
    hits = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
    loss = F.cross_entropy(logits, labels, reduction="sum")
    return torch.stack([hits[:, 0].sum(), hits.sum(), loss]).double().cpu()


def _score(parts: list[Tensor], samples: int, seconds: tuple[float, ...]) -> Score:
    """Each row was filled by one process; they are added in the order of the batches."""
    first, fifth, loss = 0.0, 0.0, 0.0
    for row in torch.stack(parts).sum(0).tolist():
        first, fifth, loss = first + row[0], fifth + row[1], loss + row[2]
    return Score(samples, first / samples, fifth / samples, loss / samples, seconds)
