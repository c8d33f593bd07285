"""Loss, accuracy and speed since the last report. A device is read only for a report."""

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

_ROW = 3  # loss, right answers, samples


@dataclass(frozen=True)
class Totals:
    """Sums that a checkpoint can hold, so that a resumed run reports the same."""

    loss: float = 0.0  # sum of the micro-batches' mean losses
    micro_batches: int = 0
    right: int = 0
    samples: int = 0
    left_out: int = 0  # micro-batches of skipped updates, whose loss is not finite


class Meter:
    """Adds up what passes left behind, here and elsewhere."""

    def __init__(self, share: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        self._share = share  # a row for each of our micro-batches → those of all, in their order
        self._totals = Totals()
        self._unread: list[MicroBatchResult] = []
        self._micro_batches = 0

    def add(self, passed: list[MicroBatchResult], micro_batches: int) -> None:
        """Note one update's results without waiting for the device; only a last stage has any."""
        self._unread.extend(passed)
        self._micro_batches += micro_batches

    def totals(self) -> Totals:
        """The sums so far, added in the order of the micro-batches. All processes must ask."""
        totals = self._totals
        for loss, right, samples in self._share(self._rows()).tolist():
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
        self.start_from(totals)
        return totals

    def _rows(self) -> Tensor:
        if not self._unread:
            return torch.zeros(self._micro_batches, _ROW, dtype=torch.float64)
        rows = [(float(one.loss), int(one.correct), one.samples) for one in self._unread]
        return torch.tensor(rows, dtype=torch.float64)

    def start_from(self, totals: Totals) -> None:
        """Go on from these sums; `Totals()` starts a new report."""
        self._unread.clear()
        self._micro_batches = 0
        self._totals = totals


@dataclass
class UpdateClock:
    """Seconds since training began, and of the updates since the last report."""

    began: float
    updates: int = 0
    seconds: float = 0.0
    warm: bool = False

    def add(self, seconds: float) -> None:
        """The very first update pays for warming up: it counts only until there is a second."""
        if self.updates == 1 and not self.warm:
            self.updates, self.seconds, self.warm = 0, 0.0, True
        self.updates += 1
        self.seconds += seconds

    def rate(self, samples_per_update: int) -> float:
        """Images per second since the last call."""
        rate = self.updates * samples_per_update / self.seconds if self.seconds else 0.0
        self.updates, self.seconds, self.warm = 0, 0.0, True
        return rate


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
