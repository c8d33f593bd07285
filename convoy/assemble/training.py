"""A training run: built from a plan, trained from the start or from a checkpoint, told and kept."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from time import monotonic

from convoy.assemble.deeds import deeds_on
from convoy.assemble.feeds import hands_of, tolerance_of, training_feed, validation_feed
from convoy.assemble.footprint import StagePeak, stage_peaks, start_counting
from convoy.assemble.holdings import Holdings
from convoy.assemble.judging import make_judge
from convoy.assemble.keeping import Keeping
from convoy.assemble.live_average import LiveAverage
from convoy.assemble.passage import make_answers, make_passage, make_replicas
from convoy.assemble.post import Post
from convoy.assemble.results import average_summary, fine_tuning_to_come
from convoy.assemble.start import Start
from convoy.assemble.state import TrainingState
from convoy.assemble.training_network import training_network
from convoy.assemble.validation import Validator
from convoy.checkpoint.strict_json import JSON
from convoy.data.photos import AnySource
from convoy.engine.loss import CrossEntropy
from convoy.engine.outfeed import Outfeed, Subscriber
from convoy.engine.stopping import StopRequest
from convoy.engine.trainer import Trainer
from convoy.engine.update import Update, collect_all
from convoy.errors import ConvoyError, NotFiniteError, NumericError, StorageError
from convoy.events import Averaged, Ended, Event, Noticed, Updated, Validated
from convoy.faults import planned_faults
from convoy.launch.outcome import from_elsewhere
from convoy.models.batch_norm import absorb, forget
from convoy.parallel.council import Matter
from convoy.report.summary import Summary
from convoy.report.throughput import Throughput

AGREEMENT_UPDATES = 100  # replicas compare their weights this often, at the start and at each save


@dataclass(frozen=True)
class Material:
    """The data of a run, and what every checkpoint says of the training it belongs to."""

    train: AnySource
    validation: AnySource | None
    origin: dict[str, JSON]


class TrainingRun:
    """All pieces of one process of a run; none of them knows another.

    Every process of a run goes through this in the same order; the first one also keeps and tells.
    """

    def __init__(self, post: Post, material: Material, outfeed: Outfeed, scratch: Path) -> None:
        """`scratch` is where state may lie that is kept off the device."""
        self.post = post
        self.plan = post.plan
        self.outfeed = outfeed
        self.network = training_network(post)
        self.replicas = make_replicas(post)
        holdings = Holdings(post, self.replicas, scratch)
        self.stages = [holdings.of(one) for one in self.network.slices]
        self.holdings = [one for stage in self.stages for one in stage]
        self.origin = material.origin
        elsewhere = scratch == Path(gettempdir())  # the folder of the run is not here
        self.tolerance = tolerance_of(self.plan.config.data, None if elsewhere else scratch)
        optimizers = [one.optimizer for one in self.holdings]
        wish = self.plan.config.average
        self.average = LiveAverage(wish, self.network, optimizers, self.replicas)
        self.trainer = self._trainer(material.train)
        self.state = TrainingState(
            post, self.network, optimizers, self.replicas, self.trainer, self.average
        )
        self.validate = self._validator(material.validation)
        self.validated: Validated | None = None
        self.averaged: Averaged | None = None
        self.average_kept: Averaged | None = None
        self.speed = Throughput(self.plan.loop.samples_per_update)
        self._update = 0
        self._saved_update = -1
        self._peaks: tuple[StagePeak, ...] = ()
        self._seconds_before = 0.0
        self._began = monotonic()

    def _trainer(self, source: AnySource) -> Trainer:
        plan, post = self.plan, self.post
        loss = CrossEntropy(plan.config.loss)
        collect = [partial(collect_all, stage) for stage in self.stages]
        self.passage = make_passage(post, self.network, loss, collect)
        norms = self.network.norms
        self.judge = make_judge(post, self.network, self.holdings)
        statistics = self.average.behind(partial(absorb, norms)), partial(forget, norms)
        update = Update(self.passage, self.holdings, self.replicas, *statistics, self.judge)
        feed = training_feed(plan, source, post.device, post.wanted, self.tolerance)
        hands = hands_of(plan.config)
        return Trainer(plan.loop, feed, hands, update, self.outfeed, post.part)

    def _validator(self, source: AnySource | None) -> Validator | None:
        if source is None:
            return None
        config, post = self.plan.config, self.post
        size, wanted = self.plan.validation_network.image_size, post.wanted
        feed = validation_feed(config, source, size, post.device, wanted, self.tolerance)
        answers = make_answers(post, self.network, feed.size)
        return Validator(answers, feed, hands_of(config), post.share)

    def begin_at(self, start: Start) -> None:
        """Put the run into the state where it begins."""
        self._update = start.done
        for one in self.network.slices:
            one.moment.go_on_after(start.done)
        self.validated = start.validated
        if start.weights is not None:
            self.network.load(start.weights)
            for holding in self.holdings:
                holding.optimizer.take(start.weights)
        if start.contents is not None:
            self.state.restore(start.contents)
            self._saved_update = start.done
            seconds = start.contents.state.get("seconds")
            self._seconds_before = float(seconds) if isinstance(seconds, int | float) else 0.0

    def go(self, stop: StopRequest, keeping: Keeping, listeners: list[Subscriber]) -> Summary:
        """Train on until the end or a wish to stop; keep and tell."""
        self.keeping = keeping
        weights, council = self.holdings[0].optimizer.flat.values, self.post.council
        deeds = deeds_on(self.network.slices[0], weights, council, lambda: self._update)
        faults = planned_faults(self.post.groups.world.index, deeds)
        for listener in (*listeners, self._remember, self._keep_and_measure, faults):
            self.outfeed.subscribe(listener)
        self._began = monotonic()
        start_counting(self.post.device)
        try:
            self.replicas.agree(self.state.digest, self._update)
            reason = self._run(stop)
            self._close(reason)
            digest = self.state.weights_sha256()
            if reason == "done" and self.average.begun and self.plan.config.checkpoint.saves:
                contents = self.state.average_alone(self._update, self._facts())
                self.keeping.keep_average(contents, self._measured())
            if reason == "done" and self.plan.loop.averages:
                reason = self._average(stop)
            self.outfeed.put(Ended(self._update, reason))
        except Exception as error:
            self._tell_the_end(error)
            raise
        summary = self._summary(reason, digest)
        self.keeping.sum_up(summary)
        return summary

    def _run(self, stop: StopRequest) -> str:
        """An update that is not sound has changed nothing: what came before it is kept."""
        try:
            return self.trainer.run(self._update, stop)
        except NotFiniteError:
            self._keep_what_came_before()
            raise

    def _keep_what_came_before(self) -> None:
        if self._saved_update == self._update:
            return
        broken = not self.state.is_sound
        if any(self.post.council.meet(Matter.SAVE, self._update, int(broken))):
            raise NumericError(
                f"the weights are not finite after update {self._update}, so there is nothing to "
                "keep; start again, or resume an earlier checkpoint with --override, with a lower "
                "--lr"
            )
        try:
            self._save()
        except StorageError as error:  # what ends the run is the other one
            self.outfeed.put(Noticed("StorageError", str(error), self._update))

    def _remember(self, event: Event) -> None:
        match event:
            case Updated():
                self._update = event.update
                self.speed.take(event.seconds)
            case Validated():
                self.validated = event
            case Averaged(checkpoints=0):
                self.average_kept = event
            case Averaged():
                self.averaged = event
            case _:
                pass

    def _keep_and_measure(self, event: Event) -> None:
        """At the end of an update: validate first, so that a checkpoint's update is complete."""
        if not isinstance(event, Updated):
            return
        self.keeping.check()
        self._tell_bad_records()
        if self.plan.loop.validations.due(event.update):
            self._measure()
        if self.plan.loop.checkpoints.due(event.update):
            self._save()
        elif event.update % AGREEMENT_UPDATES == 0:
            self.replicas.agree(self.state.digest, event.update)

    def _tell_bad_records(self) -> None:
        """Those of all processes; the first one hears of them by the list in the run's folder."""
        ledger = self.tolerance.ledger
        if ledger is not None and self.post.council.is_first:
            for bad in ledger.untold():
                self.outfeed.put(Noticed("bad_record", f"skipped {bad}", self._update))

    def _measure(self) -> None:
        assert self.validate is not None, "this run was to be without validation"
        epoch = self.plan.loop.epoch_after(self._update)
        self.outfeed.put(self.average.beside(self.validate, self._update, epoch))

    def _measured(self) -> Validated | None:
        """The validation of the weights as they are now, if there was one."""
        latest = self.validated
        return latest if latest and latest.update == self._update else None

    def _save(self) -> None:
        self.replicas.agree(self.state.digest, self._update)
        self.keeping.save(self.state.capture(self._update, self._facts()), self._update)
        for one in self.holdings:
            one.optimizer.home.rest()  # a save has looked at all of it
        self._saved_update = self._update

    def _close(self, reason: str) -> None:
        """A run that stops early must be able to go on; a finished one is measured."""
        stopped_early = reason != "done"
        if stopped_early and self._saved_update != self._update:
            self._save()
        else:
            self.state.refuse_broken(self._update)
        self.keeping.finish(self._update)
        wanted = self.plan.config.validation.validation_mode != "none"
        if wanted and not stopped_early and not self._measured():
            self._measure()
        self._tell_bad_records()
        self._peaks = stage_peaks(self.post, self._update, self.passage.stash_seen)

    def _average(self, stop: StopRequest) -> str:
        """All meet for the last time: the first process averages alone, and it may take long."""
        urgent = stop.reason if stop.is_urgent else None
        early = self.post.part.agreed_reason(urgent, self._update)
        return early or self.keeping.average(stop)

    def _tell_the_end(self, error: Exception) -> None:
        """What ends the run is told and kept as far as that goes; on a full disk it does not."""
        kind, text = type(error).__name__, str(error)
        if from_elsewhere(kind, text) is not None:
            kind, text = "WorkerLostError", "another process of this run was lost or did not answer"
        self.outfeed.put(Noticed(kind, text, self._update))
        try:
            self.keeping.finish(-1)
        except StorageError as second:
            self.outfeed.put(Noticed("StorageError", str(second), self._update))
        self.outfeed.put(Ended(self._update, kind))
        with suppress(ConvoyError):
            self.keeping.sum_up(self._summary(kind, weights_sha256=None))

    def _facts(self) -> dict[str, JSON]:
        return {
            "seconds": self._seconds(),
            "layout": self.plan.layout,
            "machine": self.post.machine(),
            **self.origin,
        }

    def _seconds(self) -> float:
        return self._seconds_before + monotonic() - self._began

    def _summary(self, reason: str, weights_sha256: str | None) -> Summary:
        loop = self.plan.loop
        measured = self._measured()
        return Summary(
            weights_sha256=weights_sha256,
            top1=measured.top1 if measured else None,
            top5=measured.top5 if measured else None,
            updates=self._update,
            epochs=self._update / loop.updates_per_epoch,
            images=self._update * loop.samples_per_update,
            images_per_second=self.speed.overall,
            seconds=self._seconds(),
            layout=self.plan.layout,
            exit_reason=reason,
            peak_bytes=[peak.bytes for peak in self._peaks],
            peak_stash=[peak.stash_sets for peak in self._peaks],
            model=self.plan.config.network.model,
            dataset=self.plan.config.data.data,
            init_path=self.plan.config.checkpoint.init_path,
            averaged=average_summary(self.averaged),
            live_average=average_summary(self.average_kept),
            fine_tune=fine_tuning_to_come(self.plan.config),
            skipped_updates=self.judge.skipped,
            bad_records=0 if self.tolerance.ledger is None else len(self.tolerance.ledger.records),
        )
