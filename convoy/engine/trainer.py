"""Trains: one update at a time, with what is to be reported of it."""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from time import monotonic

from torch import Tensor

from convoy.engine.metrics import Meter, Totals, UpdateClock
from convoy.engine.micro_batches import MicroBatches
from convoy.engine.nonfinite import NonFiniteSearch
from convoy.engine.step_guard import StepDecision
from convoy.engine.stopping import StopRequest
from convoy.engine.update import Update
from convoy.events import Event, Noticed, Reported, Updated
from convoy.optim.update_rules import StepContext
from convoy.parallel.executor import MicroBatch
from convoy.plan.loop import LoopPlan


@dataclass(frozen=True)
class UpdateResult:
    """What one update came to."""

    updated: Updated
    report: Reported | None  # if one is due
    notices: Sequence[Noticed]

    @property
    def events(self) -> Iterator[Event]:
        """In the order in which they are reported."""
        yield from self.notices
        if self.report is not None:
            yield self.report
        yield self.updated


class Trainer:
    """Runs the updates of a plan, one after the other, from any point on."""

    def __init__(self, plan: LoopPlan, micro_batches: MicroBatches, step: Update) -> None:
        self.plan = plan
        self.micro_batches = micro_batches
        self.step = step
        self.meter = Meter(self._rows_of_all)
        self.ended = ""  # why the last updates ended: done, or the reason of a stop
        self._done = 0
        self._context = StepContext(0.0)  # of the last update
        self._clock = UpdateClock(began=0.0)

    def updates(self, done: int, stop: StopRequest) -> Generator[UpdateResult]:
        """The updates after the first `done`, to the end of the plan or to a request to stop.

        `ended` says which it was. The caller reports, validates and saves between two of them.
        NotFiniteError: an update that would have made weights non-finite has changed nothing.
        """
        self._done, self._clock = done, UpdateClock(began=monotonic())
        with closing(self.micro_batches.of_updates(range(done, self.plan.updates))) as batches:
            while self._done < self.plan.updates:
                reason = self.micro_batches.share.agreed_reason(stop.reason, self._done)
                if reason is not None:
                    self.ended = reason
                    return
                yield self._update(islice(batches, self.plan.micro_batches))
                if self._done == self.plan.stop_after:
                    stop.ask("limit")
        self.ended = "done"

    def _update(self, batches: Iterable[MicroBatch]) -> UpdateResult:
        began = monotonic()
        decision = self._step(batches)
        self._done += 1
        seconds = monotonic() - began
        self._clock.add(seconds)
        report = self._report() if self.plan.reports.due(self._done) else None
        updated = Updated(self._done, seconds, decision.skipped)
        return UpdateResult(updated, report, decision.notices)

    def _step(self, batches: Iterable[MicroBatch]) -> StepDecision:
        guard = self.step.guard
        self._context = guard.step_context(self._done, self.plan.learning_rate.rate)
        passed, decision = self.step(batches, self._context)
        if decision.stop:
            search = NonFiniteSearch(guard, self.step.repeat, self.micro_batches)
            raise search.error(self._context)
        self.meter.add(passed, self.plan.micro_batches)
        return decision

    def _rows_of_all(self, rows: Tensor) -> Tensor:
        share = self.micro_batches.share
        return share.rows_of_all(rows, self.plan.micro_batches, self._done)

    def _report(self) -> Reported:
        totals, done = self.meter.totals(), self._done
        self.meter.start_from(Totals())
        return Reported(
            update=done,
            epoch=self.plan.epoch_after(done),
            loss=_mean(totals.loss, totals.micro_batches),
            accuracy=_mean(totals.right, totals.samples),
            learning_rate=self._context.rate,
            images_per_second=self._clock.rate(self.plan.samples_per_update),
            seconds=monotonic() - self._clock.began,
            loss_scale=self._context.scale,
            skipped=self.step.guard.skipped,
            left_out=totals.left_out,
        )


def _mean(total: float, count: int) -> float:
    """No number where all was left out."""
    return total / count if count else math.nan
