"""The loop: update after update, each result out by the outfeed."""

import math
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from time import monotonic

from torch import Tensor

from convoy.data.feed import Hands, MicroBatch, SyntheticFeed, TrainingFeed
from convoy.data.order import Place
from convoy.engine.inquiry import Inquiry
from convoy.engine.meter import Meter, Totals
from convoy.engine.outfeed import Outfeed
from convoy.engine.part import Part
from convoy.engine.stopping import StopRequest
from convoy.engine.targets import targets_of
from convoy.engine.update import Update
from convoy.engine.verdict import Ruling
from convoy.errors import NotFiniteError
from convoy.events import Began, Reported, Updated
from convoy.optim.step import Step
from convoy.plan.loop import LoopPlan


@dataclass
class Clock:
    """Seconds of the loop, and of the updates since the last report."""

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


class Trainer:
    """Runs the updates of a plan from any point on."""

    def __init__(
        self,
        plan: LoopPlan,
        feed: TrainingFeed | SyntheticFeed,
        hands: Hands,
        update: Update,
        outfeed: Outfeed,
        part: Part,
    ) -> None:
        self.plan = plan
        self.feed = feed
        self.hands = hands
        self.update = update
        self.outfeed = outfeed
        self.part = part
        self._done = 0
        self._step = Step(0.0)  # of the last update
        self.meter = Meter(self._rows_of_all)

    def run(self, done: int, stop: StopRequest) -> str:
        """Train until the end of the plan or a wish to stop; says which it was."""
        plan = self.plan
        pace = plan.updates_per_epoch, plan.samples_per_update
        self.outfeed.put(Began(done, plan.updates, *pace, plan.first_epoch))
        clock = Clock(began=monotonic())
        with closing(self._micro_batches(done)) as feed:
            while done < plan.updates:
                reason = self.part.agreed_reason(stop.reason, done)
                if reason is not None:
                    return reason
                began = monotonic()
                self._update(done, feed)
                done += 1
                self._tell(done, monotonic() - began, clock)
                if done == plan.stop_after:
                    stop.ask("limit")
        return "done"

    def _tell(self, done: int, seconds: float, clock: Clock) -> None:
        """The report comes first: whoever saves at `Updated` saves an update that is complete."""
        clock.add(seconds)
        if self.plan.reports.due(done):
            self._report(done, clock)
        skipped = self.update.judge.verdict.ruling is Ruling.SKIP
        self.outfeed.put(Updated(done, seconds, skipped))

    def _micro_batches(self, done: int) -> Generator[MicroBatch]:
        """All micro-batches from here to the end of the plan."""
        places = (
            Place(update, micro)
            for update in range(done, self.plan.updates)
            for micro in self.part.micros
        )
        return self.feed.micro_batches(places, self.hands)

    def _update(self, done: int, feed: Iterator[MicroBatch]) -> None:
        micro_batches = self.plan.micro_batches
        batch = ((one.images, targets_of(one)) for one in islice(feed, micro_batches))
        self._step = self.update.judge.step(done, self.plan.learning_rate.rate)
        passed = self.update(batch, self._step)
        verdict = self.update.judge.verdict
        if verdict.ruling is Ruling.STOP:
            raise self._not_finite()
        for notice in verdict.notices:
            self.outfeed.put(notice)
        self.meter.add(passed, micro_batches)
        self._done = done + 1

    def _not_finite(self) -> NotFiniteError:
        """Found out by all processes together, and told by all alike."""
        judge = self.update.judge
        inquiry = Inquiry(judge, self.update.again, self.feed, self.part)
        found, at = inquiry.hold(self._step), self._step
        before = f"{judge.in_a_row} updates before it were skipped; " if judge.in_a_row else ""
        ruled = judge.policy.skips or judge.policy.watches
        way = "" if ruled else ", or go on with --on-nonfinite skip"
        lower = f"--lr (now {at.rate:g})"
        if at.scale > 1 and not found.forward:
            lower = f"--loss-scaling (now {at.scale:,.10g})"
        return NotFiniteError(
            f"update {at.update + 1}: {found.text}; {before}it changed nothing, and the state "
            f"before it is kept; lower {lower}{way}"
        )

    def _rows_of_all(self, rows: Tensor) -> Tensor:
        return self.part.rows_of_all(rows, self.plan.micro_batches, self._done)

    def _report(self, done: int, clock: Clock) -> None:
        totals = self.meter.totals()
        self.meter.start_from(Totals())
        self.outfeed.put(
            Reported(
                update=done,
                epoch=self.plan.epoch_after(done),
                loss=_mean(totals.loss, totals.micro_batches),
                accuracy=_mean(totals.right, totals.samples),
                learning_rate=self._step.rate,
                images_per_second=clock.rate(self.plan.samples_per_update),
                seconds=monotonic() - clock.began,
                loss_scale=self._step.scale,
                skipped=self.update.judge.skipped,
                left_out=totals.left_out,
            )
        )


def _mean(total: float, count: int) -> float:
    """No number where all was left out."""
    return total / count if count else math.nan
