"""Loss, accuracy and speed since the last report. A device is read only for a report."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from convoy.parallel.executor import MicroBatchResult

_COLUMNS = 3  # loss, right answers, samples


@dataclass(frozen=True)
class Totals:
    """Sums that a checkpoint can hold, so that a resumed run reports the same."""

    loss: float = 0.0  # sum of the micro-batches' mean losses
    micro_batches: int = 0
    right: int = 0
    samples: int = 0
    left_out: int = 0  # micro-batches of skipped updates, whose loss is not finite


def own_rows(rows: Tensor) -> Tensor:
    """Nobody else has results."""
    return rows


class Meter:
    """Adds up what passes left behind, here and elsewhere."""

    def __init__(self, share: Callable[[Tensor], Tensor] = own_rows) -> None:
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
            totals = _with(totals, loss, int(right), int(samples))
        self.start_from(totals)
        return totals

    def _rows(self) -> Tensor:
        if not self._unread:
            return torch.zeros(self._micro_batches, _COLUMNS, dtype=torch.float64)
        rows = [(float(one.loss), int(one.correct), one.samples) for one in self._unread]
        return torch.tensor(rows, dtype=torch.float64)

    def start_from(self, totals: Totals) -> None:
        """Go on from these sums; `Totals()` starts a new report."""
        self._unread.clear()
        self._micro_batches = 0
        self._totals = totals


def _with(totals: Totals, loss: float, right: int, samples: int) -> Totals:
    """One more micro-batch. Only a skipped update has a loss that is not finite."""
    if not math.isfinite(loss):
        return replace(totals, left_out=totals.left_out + 1)
    return replace(
        totals,
        loss=totals.loss + loss,
        micro_batches=totals.micro_batches + 1,
        right=totals.right + right,
        samples=totals.samples + samples,
    )


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
