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

from convoy.data.loader import LoaderOptions, ValidationBatch, ValidationFeed
from convoy.errors import DataError
from convoy.parallel.control import ControlGroup, SyncPoint

_COLUMNS = ("right at first", "right among five", "loss", "counts")
_COUNTS = len(_COLUMNS) - 1  # 0 for filling, and for what could not be read


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
    council: ControlGroup


def evaluate(
    answers: Answers, feed: ValidationFeed, options: LoaderOptions, share: Share, update: int
) -> Score:
    """Run the whole source through the network as it would be used; leave it as it was."""
    rows = torch.zeros(feed.count, feed.size, len(_COLUMNS), dtype=torch.float64)
    numbers = range(share.replica, feed.count, share.replicas)
    waiting: deque[tuple[ValidationBatch, float]] = deque()
    seconds: list[float] = []
    with closing(feed.batches(numbers, options)) as batches:
        images = _remembered(batches, waiting)
        for number, logits in zip(numbers, answers.run(images), strict=True):
            batch, arrived = waiting.popleft()
            _note(batch, rows[number])
            if logits is not None:
                _judge(logits, batch, rows[number])  # on the host now: the device has finished
            seconds.append(monotonic() - arrived)
    parts = share.council.gather(SyncPoint.MEASURE, update, rows)
    return _score(parts, tuple(seconds))


def _remembered(
    batches: Iterable[ValidationBatch], waiting: deque[tuple[ValidationBatch, float]]
) -> Iterator[Tensor | None]:
    """The images go ahead; the labels are wanted when the logits come."""
    for batch in batches:
        waiting.append((batch, monotonic()))
        yield batch.images


def _note(batch: ValidationBatch, rows: Tensor) -> None:
    """The process that has the images knows which ones could be read."""
    if batch.images is not None:
        rows[: batch.samples, _COUNTS] = 1
        rows[list(batch.unread), _COUNTS] = 0


@torch.inference_mode()
def _judge(logits: Tensor, batch: ValidationBatch, rows: Tensor) -> None:
    """The process that has the labels knows what is right."""
    assert batch.labels is not None, "the last stage needs labels"
    # With fewer than six classes everything is among the first five.
    hits = logits.topk(min(5, logits.shape[1])).indices == batch.labels[:, None]
    loss = F.cross_entropy(logits, batch.labels, reduction="none")
    rows[:, :_COUNTS] = torch.stack([hits[:, 0], hits.any(1), loss], 1).double().cpu()


def _score(parts: list[Tensor], seconds: tuple[float, ...]) -> Score:
    """Each number was set by one process; they are added in the order of the samples."""
    rows = torch.stack(parts).sum(0).flatten(0, 1)
    counted = rows[rows[:, _COUNTS] == 1]
    samples = len(counted)
    if samples == 0:
        raise DataError("no sample of the validation split can be read")
    first, fifth, loss = (counted[:, :_COUNTS].sum(0) / samples).tolist()
    return Score(samples, first, fifth, loss, seconds)
