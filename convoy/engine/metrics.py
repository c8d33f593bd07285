"""Loss, accuracy and speed since the last report. Reports are the only device synchronization."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.data.loader import LoaderOptions, ValidationBatch, ValidationFeed
from convoy.errors import DataError
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.parallel.executor import MicroBatchResult

_NUM_COLUMNS = 3  # loss, correct predictions, samples


@dataclass(frozen=True)
class Totals:
    """Sums that a checkpoint stores, so that a resumed run reports the same values."""

    loss: float = 0.0  # sum of the micro-batches' mean losses
    micro_batches: int = 0
    right: int = 0
    samples: int = 0
    left_out: int = 0  # micro-batches of skipped updates, whose loss is not finite


class Meter:
    """Sums the results of micro-batches over all processes."""

    def __init__(self, gather_rows: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        self._gather_rows = gather_rows  # gathers the rows of all micro-batches, in order
        self._totals = Totals()
        self._pending_results: list[MicroBatchResult] = []
        self._micro_batches = 0

    def add(self, results: list[MicroBatchResult], micro_batches: int) -> None:
        """Store the results of an update without a synchronization; only the last stage has any."""
        self._pending_results.extend(results)
        self._micro_batches += micro_batches

    def totals(self) -> Totals:
        """The sums so far, added in micro-batch order. All processes must call this."""
        totals = self._totals
        local = torch.zeros(self._micro_batches, _NUM_COLUMNS, dtype=torch.float64)
        if self._pending_results:
            rows = [
                (float(result.loss), int(result.correct), result.samples)
                for result in self._pending_results
            ]
            local = torch.tensor(rows, dtype=torch.float64)
        for loss, right, samples in self._gather_rows(local).tolist():
            if not math.isfinite(loss):  # of a skipped update
                totals = replace(totals, left_out=totals.left_out + 1)
                continue
            totals = Totals(
                totals.loss + loss,
                totals.micro_batches + 1,
                totals.right + int(right),
                totals.samples + int(samples),
                totals.left_out,
            )
        self.reset(totals)
        return totals

    def reset(self, totals: Totals) -> None:
        """Continue from these sums; `Totals()` starts a new report."""
        self._pending_results.clear()
        self._micro_batches = 0
        self._totals = totals


@dataclass
class UpdateClock:
    """Time since training started, and of the updates since the last report."""

    began: float
    updates: int = 0
    seconds: float = 0.0
    warm: bool = False

    def add(self, seconds: float) -> None:
        """Add an update. The first one includes warm-up, so it is dropped after the second."""
        if self.updates == 1 and not self.warm:
            self.updates, self.seconds, self.warm = 0, 0.0, True
        self.updates += 1
        self.seconds += seconds

    def rate(self, samples_per_update: int) -> float:
        """Images per second since the last call."""
        rate = self.updates * samples_per_update / self.seconds if self.seconds else 0.0
        self.updates, self.seconds, self.warm = 0, 0.0, True
        return rate


_COLUMNS = ("top1", "top5", "loss", "counts")
_COUNTS = len(_COLUMNS) - 1  # 0 for padding and for unreadable samples


@dataclass(frozen=True)
class Score:
    """Accuracies and mean loss over all samples, independent of the batch size."""

    samples: int
    top1: float
    top5: float
    loss: float
    batch_seconds: tuple[float, ...] = field(default=(), compare=False)  # of this process


class Predictor(Protocol):
    """Runs forward passes through one stage or several."""

    def run(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        """Yield the logits of each batch on the last stage, None elsewhere."""


@dataclass(frozen=True)
class ValidationShare:
    """The batches that a process validates: replica r has batch r, r + replicas, …"""

    replica: int
    replicas: int
    control: ControlGroup


def evaluate(
    predictor: Predictor,
    feed: ValidationFeed,
    options: LoaderOptions,
    share: ValidationShare,
    update: int,
) -> Score:
    rows = torch.zeros(feed.num_batches, feed.size, len(_COLUMNS), dtype=torch.float64)
    numbers = range(share.replica, feed.num_batches, share.replicas)
    waiting: deque[tuple[ValidationBatch, float]] = deque()
    seconds: list[float] = []
    with closing(feed.batches(numbers, options)) as batches:
        images = _record_arrivals(batches, waiting)
        for number, logits in zip(numbers, predictor.run(images), strict=True):
            batch, arrived = waiting.popleft()
            if batch.images is not None:  # only this process knows which samples are readable
                rows[number, : batch.samples, _COUNTS] = 1
                rows[number, list(batch.unreadable), _COUNTS] = 0
            if logits is not None:
                _score_batch(logits, batch, rows[number])  # synchronizes with the device
            seconds.append(monotonic() - arrived)
    gathered = share.control.all_gather_tensor(SyncPoint.VALIDATE, update, rows)
    return _mean_score(gathered, tuple(seconds))


def _record_arrivals(
    batches: Iterable[ValidationBatch], waiting: deque[tuple[ValidationBatch, float]]
) -> Iterator[Tensor | None]:
    """Yield the images; labels and arrival times wait for the logits."""
    for batch in batches:
        waiting.append((batch, monotonic()))
        yield batch.images


@torch.inference_mode()
def _score_batch(logits: Tensor, batch: ValidationBatch, rows: Tensor) -> None:
    """Score a batch on the process that has the labels."""
    assert batch.labels is not None, "the last stage needs labels"
    # With fewer than six classes every prediction is in the top five.
    hits = logits.topk(min(5, logits.shape[1])).indices == batch.labels[:, None]
    loss = F.cross_entropy(logits, batch.labels, reduction="none")
    rows[:, :_COUNTS] = torch.stack([hits[:, 0], hits.any(1), loss], 1).double().cpu()


def _mean_score(gathered: list[Tensor], seconds: tuple[float, ...]) -> Score:
    """Average over samples, in order; each row is set by one process and zero elsewhere."""
    rows = torch.stack(gathered).sum(0).flatten(0, 1)
    counted = rows[rows[:, _COUNTS] == 1]
    samples = len(counted)
    if samples == 0:
        raise DataError("no sample of the validation split is readable")
    top1, top5, loss = (counted[:, :_COUNTS].sum(0) / samples).tolist()
    return Score(samples, top1, top5, loss, seconds)
