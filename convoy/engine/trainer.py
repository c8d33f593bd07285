"""The training loop: one update at a time, with its events."""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from time import monotonic

import torch
from torch import Tensor

from convoy.data.loader import LoaderOptions, MicroBatchIndex, TrainingFeed
from convoy.engine.loops import repeat
from convoy.engine.metrics import Meter, Totals, UpdateClock
from convoy.engine.update import Update, UpdateBatches
from convoy.errors import NotFiniteError
from convoy.events import Event, Reported, StopRequest, Updated
from convoy.numerics.traps import MAX_LISTED_SAMPLES, NO_RECORD, NonFiniteRecord, Phase
from convoy.optim.update_rules import StepContext
from convoy.parallel.control import SyncPoint
from convoy.parallel.executor import PipelineInput
from convoy.planning.loop import LoopPlan

# The worker processes are busy with later updates.
_IN_PROCESS_LOADER = LoaderOptions(workers=0, prefetch_depth=1)


@dataclass(frozen=True)
class UpdateResult:
    updated: Updated
    events: Sequence[Event]  # in the order in which they are reported


class Trainer:
    """Runs the updates of a plan, starting at any update."""

    def __init__(self, plan: LoopPlan, micro_batches: UpdateBatches, update_step: Update) -> None:
        self.plan = plan
        self.micro_batches = micro_batches
        self.update_step = update_step
        self.meter = Meter(self._gather_rows)
        self.exit_reason = ""  # why `updates` ended: done, or the reason of a stop
        self._done = 0
        self._context = StepContext(0.0)  # of the latest update
        self._clock = UpdateClock(began=0.0)

    def updates(self, done: int, stop: StopRequest) -> Generator[UpdateResult]:
        """Run the updates after the first `done`, to the end of the plan or to a request to stop.

        `exit_reason` is set at the end. The caller reports, validates and saves between updates.
        Raises NotFiniteError instead of applying an update that is not finite.
        """
        self._done, self._clock = done, UpdateClock(began=monotonic())
        with closing(self.micro_batches.for_updates(range(done, self.plan.updates))) as batches:
            while self._done < self.plan.updates:
                reason = self.micro_batches.share.agree_on_stop(stop.reason, self._done)
                if reason is not None:
                    self.exit_reason = reason
                    return
                yield from self._loop(batches)
                if self._done == self.plan.stop_after:
                    stop.request("limit")
        self.exit_reason = "done"

    def _loop(self, batches: Iterable[PipelineInput]) -> Iterator[UpdateResult]:
        """Run several updates without returning; then yield the results, also before an error."""
        results: list[UpdateResult] = []

        def body() -> None:
            results.append(self._update(islice(batches, self.plan.micro_batches)))

        try:
            repeat(self.plan.loop_length(self._done), body)
        except NotFiniteError:
            yield from results
            raise
        yield from results

    @torch.enable_grad()  # an observer may have disabled gradients
    def _update(self, batches: Iterable[PipelineInput]) -> UpdateResult:
        started = monotonic()
        guard = self.update_step.guard
        self._context = guard.step_context(self._done, self.plan.learning_rate.rate)
        results, decision = self.update_step(batches, self._context)
        if decision.stop:
            raise NonFiniteSearch(self.update_step, self.micro_batches).error(self._context)
        self.meter.add(results, self.plan.micro_batches)
        self._done += 1
        seconds = monotonic() - started
        self._clock.add(seconds)
        reports = [self._report()] if self.plan.reports.is_due(self._done) else []
        updated = Updated(self._done, seconds, decision.skipped)
        return UpdateResult(updated, [*decision.notices, *reports, updated])

    def _gather_rows(self, rows: Tensor) -> Tensor:
        share = self.micro_batches.share
        return share.all_gather_rows(rows, self.plan.micro_batches, self._done)

    def _report(self) -> Reported:
        totals, done = self.meter.totals(), self._done
        self.meter.reset(Totals())
        return Reported(
            update=done,
            epoch=self.plan.epoch_after(done),
            loss=_mean_or_nan(totals.loss, totals.micro_batches),
            accuracy=_mean_or_nan(totals.right, totals.samples),
            learning_rate=self._context.lr,
            images_per_second=self._clock.rate(self.plan.samples_per_update),
            seconds=monotonic() - self._clock.began,
            loss_scale=self._context.loss_scale,
            skipped=self.update_step.guard.skipped,
            left_out=totals.left_out,
        )


def _mean_or_nan(total: float, count: int) -> float:
    """NaN if every micro-batch was left out."""
    return total / count if count else math.nan


@dataclass(frozen=True)
class NonFiniteSearch:
    """Finds the origin of the first non-finite value of a failed update.

    All processes run the micro-batches of the update again, with a trap at every layer, and compare
    their records. The weights are unchanged, and data and randomness depend only on the step
    position, so the same values occur again.
    """

    update_step: Update
    micro_batches: UpdateBatches

    def error(self, context: StepContext) -> NotFiniteError:
        """The error that ends the run, the same on all processes; all of them must call this."""
        guard, (source, is_forward) = self.update_step.guard, self._find_source(context)
        skips = guard.consecutive_skips
        skipped = f"consecutive updates skipped before it: {skips}; " if skips else ""
        continues = guard.policy.skip or guard.policy.watch_layers
        alternative = "" if continues else ", or continue with --on-nonfinite skip"
        option = f"--lr (now {context.lr:g})"
        if context.loss_scale > 1 and not is_forward:
            option = f"--loss-scaling (now {context.loss_scale:,.10g})"
        return NotFiniteError(
            f"update {context.update + 1}: {source}; {skipped}the update was not applied, "
            f"and the state before it is kept; lower {option}{alternative}"
        )

    def _find_source(self, context: StepContext) -> tuple[str, bool]:
        """Describe the origin, and whether it is in the forward pass."""
        guard, share, update = self.update_step.guard, self.micro_batches.share, context.update
        traps = guard.traps
        if traps is None:
            text = "its gradients are not finite; run without --compile to find the layer"
            return text, False
        if not guard.policy.watch_layers:  # otherwise there are records already
            again = self.micro_batches.for_updates(range(update, update + 1), _IN_PROCESS_LOADER)
            with closing(again) as batches:
                self.update_step.rerun_with_traps(batches, context)
        local = NO_RECORD if traps.first is None else traps.first.as_tensor()
        gathered = share.control.all_gather_tensor(SyncPoint.STEP_DECISION, update, local)
        decoded = enumerate(map(NonFiniteRecord.from_tensor, gathered))
        records = [(record, rank) for rank, record in decoded if record is not None]
        if not records:
            return (
                "its gradients are not finite, although those of every micro-batch are: their sum "
                "overflows --accumulator-dtype; use a wider dtype"
            ), False
        record, rank = min(records)
        where = f" ({share.rank_descriptions[rank]})" if share.rank_descriptions else ""
        text = f"{self._describe(record, traps.names[record.layer], update)}, on rank {rank}{where}"
        return text, record.phase is Phase.FORWARD

    def _describe(self, record: NonFiniteRecord, layer: str, update: int) -> str:
        batch = f"micro-batch {record.micro + 1}"
        match record.phase:
            case Phase.FORWARD:
                problem = f"the outputs of layer {layer} are not finite in the forward pass"
            case Phase.BACKWARD:
                problem = f"the gradients at layer {layer} are not finite in the backward pass"
            case Phase.WEIGHTS:
                return f"the gradient of the weights of layer {layer} is not finite in {batch}"
        return f"{problem}, for {self._describe_samples(record, update)} of {batch}"

    def _describe_samples(self, record: NonFiniteRecord, update: int) -> str:
        """List sample ids; for synthetic data, which has none, the rows of the micro-batch."""
        ids, feed = list(record.bad_samples), self.micro_batches.feed
        if isinstance(feed, TrainingFeed):
            ids = feed.order.ids(MicroBatchIndex(update, record.micro))[ids].tolist()
        count = record.num_bad_samples
        more = f" and {count - MAX_LISTED_SAMPLES} more" if count > MAX_LISTED_SAMPLES else ""
        return f"sample{'s' * (count > 1)} {', '.join(map(str, ids))}{more}"
