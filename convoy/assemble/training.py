"""A training run: built from a plan, trained from the start or from a checkpoint, told and kept."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

import torch

from convoy.assemble.feeds import hands_of, training_feed
from convoy.assemble.machine import describe_machine, make_repeatable
from convoy.assemble.network import build_network
from convoy.assemble.state import TrainingState
from convoy.assemble.validation import Validator
from convoy.checkpoint.background import BackgroundSaver, stop_the_run
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.digest import weights_sha256
from convoy.checkpoint.store import Store
from convoy.checkpoint.strict_json import JSON
from convoy.data.source import Source
from convoy.engine.loss import CrossEntropy
from convoy.engine.outfeed import Outfeed, Subscriber
from convoy.engine.stopping import StopRequest
from convoy.engine.trainer import Trainer
from convoy.engine.update import Update
from convoy.errors import ConvoyError, StorageError
from convoy.events import Ended, Event, Noticed, Saved, Updated, Validated
from convoy.faults import planned_faults
from convoy.models.layers import absorb
from convoy.numerics.flat import FlatWeights
from convoy.numerics.gradients import GradientTree
from convoy.optim.optimizers import Sgd
from convoy.parallel.pipeline import Pipeline
from convoy.parallel.replicas import Alone, Replicas
from convoy.plan.plan import RunPlan
from convoy.report.run_folder import RunFolder
from convoy.report.summary import Summary
from convoy.report.throughput import Throughput

AGREEMENT_UPDATES = 100  # replicas compare their weights this often, at the start and at each save


@dataclass(frozen=True)
class Place:
    """Where a run computes and what its bits are promised for."""

    device: torch.device
    threads: int

    def machine(self) -> dict[str, JSON]:
        """As a checkpoint remembers it."""
        return {**describe_machine(self.device, self.threads)}


@dataclass(frozen=True)
class Material:
    """The data of a run, and what every checkpoint says of the training it belongs to."""

    train: Source
    validation: Source | None
    origin: dict[str, JSON]


class TrainingRun:
    """All pieces of one run; none of them knows another. `go` trains, keeps and tells."""

    def __init__(self, plan: RunPlan, material: Material, folder: RunFolder, place: Place) -> None:
        make_repeatable(place.threads)
        self.plan = plan
        self.folder = folder
        self.place = place
        self.outfeed = Outfeed()
        self.network = build_network(plan.network, plan.config.data.seed, place.device)
        self.replicas: Replicas = Alone()
        flat = FlatWeights(self.network.slice.named_weights())
        owned = self.replicas.owned(flat.elements)
        self.optimizer = Sgd(flat, plan.config.optimizer, owned)
        self.origin = material.origin
        self.trainer = self._trainer(material.train)
        self.state = TrainingState(self.network, self.optimizer, self.replicas, self.trainer)
        self.validate = Validator(plan.config, material.validation, place.device)
        self.store = Store(folder.checkpoints)
        self.saver = self._saver()
        self.validated: Validated | None = None
        self.speed = Throughput(plan.loop.samples_per_update)
        self._update = 0
        self._saved_update = -1
        self._failed_update = -1
        self._seconds_before = 0.0
        self._began = monotonic()

    def _trainer(self, source: Source) -> Trainer:
        gradients = GradientTree(self.optimizer.flat)
        loss = CrossEntropy(self.plan.config.loss)
        pipeline = Pipeline(self.network.slice, loss, after_backward=gradients.collect)
        absorb_statistics = partial(absorb, self.network.norms)
        update = Update(pipeline, gradients, self.replicas, self.optimizer, absorb_statistics)
        feed = training_feed(self.plan, source, self.place.device)
        return Trainer(self.plan.loop, feed, hands_of(self.plan.config), update, self.outfeed)

    def _saver(self) -> BackgroundSaver:
        checkpoint = self.plan.config.checkpoint
        on_failed = stop_the_run if checkpoint.on_save_error == "stop" else self._tell_failed
        return BackgroundSaver(
            self.store, checkpoint.keep_last or None, self._tell_saved, on_failed
        )

    def go_on_from(self, contents: Contents) -> None:
        """Put the run into the state of a checkpoint."""
        self.state.restore(contents)
        self._saved_update = contents.update
        seconds = contents.state.get("seconds")
        self._seconds_before = float(seconds) if isinstance(seconds, int | float) else 0.0

    def go(self, done: int, stop: StopRequest, listeners: list[Subscriber]) -> Summary:
        """Train from `done` updates on until the end or a wish to stop; keep and tell."""
        for listener in (*listeners, self._remember, self._keep_and_measure, planned_faults()):
            self.outfeed.subscribe(listener)
        self._began = monotonic()
        self._update = done
        try:
            self.replicas.agree(self.state.digest, done)
            reason = self.trainer.run(done, stop)
            self._close(reason)
            self.outfeed.put(Ended(self._update, reason))
        except ConvoyError as error:
            self.outfeed.put(Noticed(type(error).__name__, str(error), self._update))
            self._finish_quietly()
            self.outfeed.put(Ended(self._update, type(error).__name__))
            self._sum_up_quietly(type(error).__name__)
            raise
        return self._summary(reason)

    def _remember(self, event: Event) -> None:
        match event:
            case Updated():
                self._update = event.update
                self.speed.take(event.seconds)
            case Validated():
                self.validated = event
            case _:
                pass

    def _keep_and_measure(self, event: Event) -> None:
        """At the end of an update: validate first, so that a checkpoint's update is complete."""
        if not isinstance(event, Updated):
            return
        self.saver.check()
        if self.plan.loop.validations.due(event.update):
            self._measure()
        if self.plan.loop.checkpoints.due(event.update):
            self._save()
        elif event.update % AGREEMENT_UPDATES == 0:
            self.replicas.agree(self.state.digest, event.update)

    def _measure(self) -> None:
        epoch = self._update / self.plan.loop.updates_per_epoch
        self.outfeed.put(self.validate(self.network, self._update, epoch))

    def _measured(self) -> Validated | None:
        """The validation of the weights as they are now, if there was one."""
        latest = self.validated
        return latest if latest and latest.update == self._update else None

    def _save(self) -> None:
        self.replicas.agree(self.state.digest, self._update)
        self.saver.save(self.state.capture(self._update, self._facts()), self._update)
        self._saved_update = self._update

    def _close(self, reason: str) -> None:
        """A run that stops early must be able to go on; a finished one is measured."""
        stopped_early = reason != "done"
        if stopped_early and self._saved_update != self._update:
            self._save()
        else:
            self.state.refuse_broken(self._update)
        self.saver.finish()
        if self._failed_update == self._update:
            raise StorageError(f"the last weights, of update {self._update}, could not be saved")
        wanted = self.plan.config.validation.validation_mode != "none"
        if wanted and not stopped_early and not self._measured():
            self._measure()

    def _sum_up_quietly(self, reason: str) -> None:
        """The summary of a run that failed; on a full disk there is none."""
        with suppress(StorageError):
            self._summary(reason).write(self.folder.summary)

    def _finish_quietly(self) -> None:
        """The error that ends the run is the one to tell."""
        try:
            self.saver.finish()
        except StorageError as error:
            self.outfeed.put(Noticed("StorageError", str(error), self._update))

    def _tell_saved(self, update: int, path: Path, seconds: float) -> None:
        self.outfeed.put(Saved(update, str(path.relative_to(self.folder.path)), seconds))

    def _tell_failed(self, update: int, error: StorageError) -> None:
        self._failed_update = update
        self.outfeed.put(Noticed("save_failed", f"training goes on: {error}", update))

    def _facts(self) -> dict[str, JSON]:
        return {
            "seconds": self._seconds(),
            "layout": self.plan.layout,
            "machine": self.place.machine(),
            **self.origin,
        }

    def _seconds(self) -> float:
        return self._seconds_before + monotonic() - self._began

    def _summary(self, reason: str) -> Summary:
        tensors = {name: one.detach() for name, one in self.network.slice.named_tensors().items()}
        loop = self.plan.loop
        measured = self._measured()
        return Summary(
            weights_sha256=weights_sha256(tensors),
            top1=measured.top1 if measured else None,
            top5=measured.top5 if measured else None,
            updates=self._update,
            epochs=self._update / loop.updates_per_epoch,
            images=self._update * loop.samples_per_update,
            images_per_second=self.speed.overall,
            seconds=self._seconds(),
            layout=self.plan.layout,
            exit_reason=reason,
            model=self.plan.config.network.model,
            dataset=self.plan.config.data.data,
        )
