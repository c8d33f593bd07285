"""Trains: one update at a time, with what is to be reported of it."""

import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from time import monotonic

from torch import Tensor

from convoy.data.loader import LoaderOptions, MicroBatchIndex, TrainingFeed
from convoy.engine.metrics import Meter, Totals, UpdateClock
from convoy.engine.step_guard import StepDecision
from convoy.engine.update import MicroBatches, Update
from convoy.errors import NotFiniteError
from convoy.events import Event, Reported, StopRequest, Updated
from convoy.numerics.traps import NOTHING, ROWS, Note, Phase
from convoy.optim.update_rules import StepContext
from convoy.parallel.control import SyncPoint
from convoy.parallel.executor import PipelineInput
from convoy.plan.loop import LoopPlan

_NO_WORKERS = LoaderOptions(workers=0, depth=1)  # they are busy with later updates


@dataclass(frozen=True)
class UpdateResult:
    """What one update came to."""

    updated: Updated
    events: Sequence[Event]  # all of its events, in the order in which they are reported


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

    def _update(self, batches: Iterable[PipelineInput]) -> UpdateResult:
        began = monotonic()
        decision = self._step(batches)
        self._done += 1
        seconds = monotonic() - began
        self._clock.add(seconds)
        reports = [self._report()] if self.plan.reports.due(self._done) else []
        updated = Updated(self._done, seconds, decision.skipped)
        return UpdateResult(updated, [*decision.notices, *reports, updated])

    def _step(self, batches: Iterable[PipelineInput]) -> StepDecision:
        guard = self.step.guard
        self._context = guard.step_context(self._done, self.plan.learning_rate.rate)
        passed, decision = self.step(batches, self._context)
        if decision.stop:
            raise NonFiniteSearch(self.step, self.micro_batches).error(self._context)
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


@dataclass(frozen=True)
class NonFiniteSearch:
    """Finds where the first value of a failed update that is not finite arose.

    All processes pass the micro-batches of the update once more, with a trap at every layer, and
    compare notes. Nothing has changed since, and data and randomness are functions of the position:
    the same values come again.
    """

    step: Update
    micro_batches: MicroBatches

    def error(self, context: StepContext) -> NotFiniteError:
        """The error that ends the run, the same on all processes. All of them must call it."""
        guard, (text, is_forward) = self.step.guard, self._source(context)
        before = f"{guard.in_a_row} updates before it were skipped; " if guard.in_a_row else ""
        is_chosen = guard.policy.skip or guard.policy.watch_layers
        way = "" if is_chosen else ", or go on with --on-nonfinite skip"
        lower = f"--lr (now {context.rate:g})"
        if context.scale > 1 and not is_forward:
            lower = f"--loss-scaling (now {context.scale:,.10g})"
        return NotFiniteError(
            f"update {context.update + 1}: {text}; {before}it changed nothing, and the "
            f"state before it is kept; lower {lower}{way}"
        )

    def _source(self, context: StepContext) -> tuple[str, bool]:
        """Where it arose, and whether that is before the loss."""
        guard, share, update = self.step.guard, self.micro_batches.share, context.update
        traps = guard.traps
        if traps is None:
            text = "its gradients are not finite; without --compile the first layer would be named"
            return text, False
        if not guard.policy.watch_layers:  # else the notes are there already
            again = self.micro_batches.of_updates(range(update, update + 1), _NO_WORKERS)
            with closing(again) as batches:
                self.step.repeat(batches, context)
        own = NOTHING if traps.first is None else traps.first.as_tensor()
        gathered = enumerate(
            map(Note.from_tensor, share.control.gather(SyncPoint.VERDICT, update, own))
        )
        notes = [(note, rank) for rank, note in gathered if note is not None]
        if not notes:
            return (
                "its gradients are not finite, though those of every micro-batch are: they are too "
                "large for --accumulator-dtype; use a wider one"
            ), False
        note, rank = min(notes, key=lambda pair: pair[0].place)
        where = f" ({share.places[rank]})" if share.places else ""
        text = f"{self._described(note, traps.names[note.layer], update)}, on rank {rank}{where}"
        return text, note.phase is Phase.FORWARD

    def _described(self, note: Note, layer: str, update: int) -> str:
        batch = f"micro-batch {note.micro + 1}"
        match note.phase:
            case Phase.FORWARD:
                made = f"the forward pass makes values that are not finite in layer {layer}"
            case Phase.BACKWARD:
                made = f"the backward pass comes to layer {layer} with values that are not finite"
            case Phase.WEIGHTS:
                return f"the gradient of the weights of layer {layer} is not finite in {batch}"
        return f"{made}, for {self._samples(note, update)} of {batch}"

    def _samples(self, note: Note, update: int) -> str:
        """Synthetic ones have no other number than their row."""
        ids, feed = list(note.rows), self.micro_batches.feed
        if isinstance(feed, TrainingFeed):
            ids = feed.order.ids(MicroBatchIndex(update, note.micro))[ids].tolist()
        more = f" and {note.bad_rows - ROWS} more" if note.bad_rows > ROWS else ""
        return f"sample{'s' * (note.bad_rows > 1)} {', '.join(map(str, ids))}{more}"
