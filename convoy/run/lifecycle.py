"""The lifecycle of a run in one process: updates, validations, checkpoints and the end.

All processes run the same steps in the same order; only rank 0 writes and reports.
"""

from contextlib import closing, suppress
from time import monotonic

from convoy.checkpoint.format import JSON
from convoy.engine.trainer import UpdateResult
from convoy.errors import ConvoyError, NotFiniteError, NumericError, StorageError
from convoy.events import Averaged, Began, Ended, Noticed, Observers, StopRequest, Validated
from convoy.files import FINE_TUNE_FOLDER
from convoy.launch.worker import peer_error_code
from convoy.parallel.control import SyncPoint
from convoy.report.format import Throughput
from convoy.report.summary import PENDING, AverageSummary, FineTuneSummary, Summary
from convoy.run.build import TrainingParts
from convoy.run.fault_injection import fault_injector
from convoy.run.process import gather_stage_peaks, reset_peak_memory
from convoy.run.starting_point import StartingPoint
from convoy.run.state import TrainingState, check_finite
from convoy.run.validation import with_ema
from convoy.run.writer import NullWriter, RunWriter

SYNC_CHECK_UPDATES = 100  # replicas compare their weights this often, at the start and at each save


class Lifecycle:
    """Run the training from its starting point to its summary."""

    def __init__(
        self,
        parts: TrainingParts,
        fingerprint: dict[str, JSON],
        writer: RunWriter | NullWriter,
        observers: Observers,
        stop: StopRequest,
    ) -> None:
        """`fingerprint` identifies the run; it is saved in every checkpoint."""
        self.parts = parts
        self.plan = parts.context.plan
        self.state = TrainingState(parts)
        self.fingerprint = fingerprint
        self.writer = writer
        self.observers = observers
        self.stop = stop
        self.update = 0  # finished updates
        self.validated: Validated | None = None
        self.averaged: Averaged | None = None
        self.ema_saved: Averaged | None = None
        self._saved_update = -1
        self._throughput = Throughput(self.plan.loop.samples_per_update)
        self._stage_peaks: list[tuple[int, int]] = []
        self._previous_seconds = 0.0
        self._start_time = monotonic()
        self._inject_faults = fault_injector(parts)

    def load(self, start: StartingPoint) -> None:
        """Load network, optimizers and counters from the starting point."""
        self.update = start.updates_done
        self.validated = start.validated
        for layers in self.parts.network.slices:
            layers.position.resume_after(start.updates_done)
        if start.weights is not None:
            self.parts.network.load(start.weights)
            for optimizer in self.parts.optimizers:
                optimizer.load_weights(start.weights)
        if start.contents is not None:
            self.state.restore(start.contents)
            self._saved_update = start.updates_done
            seconds = start.contents.state.get("seconds")
            self._previous_seconds = float(seconds) if isinstance(seconds, int | float) else 0.0

    def run(self) -> Summary:
        self._start_time = monotonic()
        reset_peak_memory(self.parts.context.device)
        try:
            self._check_in_sync()
            reason = self._train()
            self._finish_training(reason)
            digest = self.state.weights_sha256()
            if reason == "done":
                reason = self._average()
            self.observers.notify(Ended(self.update, reason))
        except Exception as error:
            self._report_failure(error)
            raise
        summary = self._summary(reason, digest)
        self.writer.write_summary(summary)
        return summary

    def _train(self) -> str:
        """Run the updates; return the exit reason."""
        loop, trainer = self.plan.loop, self.parts.trainer
        pace = loop.updates_per_epoch, loop.samples_per_update
        self.observers.notify(Began(self.update, loop.updates, *pace, loop.first_epoch))
        try:
            with closing(trainer.updates(self.update, self.stop)) as results:
                for result in results:
                    self._after_update(result)
        except NotFiniteError:
            self._save_last_finite_state()
            raise
        return trainer.exit_reason

    def _after_update(self, result: UpdateResult) -> None:
        """Report, validate and save, always after a complete update."""
        self.update = result.updated.update
        self._throughput.add(result.updated.seconds)
        for event in result.events:
            self.observers.notify(event)
        self.writer.check()
        self._report_bad_records()
        if self.plan.loop.validations.is_due(self.update):
            self._validate()
        if self.plan.loop.checkpoints.is_due(self.update):
            self._save()
        elif self.update % SYNC_CHECK_UPDATES == 0:
            self._check_in_sync()
        self._inject_faults(self.update)

    def _validate(self) -> None:
        assert self.parts.validate is not None, "validation is off in this run"
        epoch = self.plan.loop.epoch_after(self.update)
        self.validated = with_ema(self.parts.validate, self.parts.ema, self.update, epoch)
        self.observers.notify(self.validated)

    def _current_validation(self) -> Validated | None:
        """The validation of the weights as they are now, if there was one."""
        latest = self.validated
        return latest if latest and latest.update == self.update else None

    def _save(self) -> None:
        self._check_in_sync()
        self.writer.save(self.state.capture(self.update, self._checkpoint_metadata()))
        for optimizer in self.parts.optimizers:
            optimizer.storage.evict()  # saving has read all of it
        self._saved_update = self.update

    def _check_in_sync(self) -> None:
        self.parts.replicas.check_weights_equal(self.state.digest, self.update)

    def _save_last_finite_state(self) -> None:
        """Save the state before a non-finite update, which changed nothing."""
        if self._saved_update == self.update:
            return
        broken = not self.state.is_finite
        if any(self.parts.context.control.all_gather(SyncPoint.SAVE, self.update, int(broken))):
            raise NumericError(
                f"the weights are not finite after update {self.update}, so there is nothing to "
                "save; start again, or resume an earlier checkpoint with --override, with a lower "
                "--lr"
            )
        try:
            self._save()
        except StorageError as error:  # the first error ends the run
            self.observers.notify(Noticed("StorageError", str(error), self.update))

    def _finish_training(self, reason: str) -> None:
        """Save a run that stops early; validate a finished one."""
        is_done = reason == "done"
        if is_done or self._saved_update == self.update:
            check_finite(self.parts.network.tensors(), self.update)
        else:
            self._save()
        self.writer.finish(self.update)
        if is_done and self.parts.validate is not None and not self._current_validation():
            self._validate()
        self._report_bad_records()
        stash_sets = self.parts.pipeline.peak_stash_seen
        self._stage_peaks = gather_stage_peaks(self.parts.context, self.update, stash_sets)

    def _average(self) -> str:
        """Save the averages of a finished run; return the exit reason.

        Averaging on rank 0 may take long: all ranks agree on a stop before it, and only rank 0 is
        needed after it.
        """
        if self.parts.ema.started and self.plan.config.checkpoint.saves_checkpoints:
            contents = self.state.capture_average(self.update, self._checkpoint_metadata())
            self.ema_saved = self.writer.save_ema(contents, self._current_validation())
            if self.ema_saved is not None:
                self.observers.notify(self.ema_saved)
        if not self.plan.loop.averages_checkpoints:
            return "done"
        urgent = self.stop.reason if self.stop.is_urgent else None
        early = self.parts.context.update_share.agree_on_stop(urgent, self.update)
        if early is not None:
            return early
        self.averaged = self.writer.average(self.stop)
        if self.averaged is not None:
            self.observers.notify(self.averaged)
        elif self.parts.context.control.is_rank_zero:
            return self.stop.reason or "done"
        return "done"

    def _report_bad_records(self) -> None:
        """Report bad records of all processes; they share one list in the run folder."""
        ledger = self.parts.ledger
        if ledger is not None and self.parts.context.control.is_rank_zero:
            for bad in ledger.new_records():
                self.observers.notify(Noticed("bad_record", f"skipped {bad}", self.update))

    def _report_failure(self, error: Exception) -> None:
        """Report an error that ends the run, and write what is possible: the disk may be full."""
        kind, text = type(error).__name__, str(error)
        if peer_error_code(kind, text) is not None:
            kind = "WorkerLostError"
            text = "another process of this run was lost or did not respond"
        self.observers.notify(Noticed(kind, text, self.update))
        try:
            self.writer.finish(-1)
        except StorageError as second:
            self.observers.notify(Noticed("StorageError", str(second), self.update))
        self.observers.notify(Ended(self.update, kind))
        with suppress(ConvoyError):
            self.writer.write_summary(self._summary(kind, weights_sha256=None))

    def _checkpoint_metadata(self) -> dict[str, JSON]:
        return {
            "seconds": self._seconds(),
            "layout": self.plan.layout,
            "machine": self.parts.context.machine_info(),
            **self.fingerprint,
        }

    def _seconds(self) -> float:
        return self._previous_seconds + monotonic() - self._start_time

    def _summary(self, reason: str, weights_sha256: str | None) -> Summary:
        config, loop = self.plan.config, self.plan.loop
        validated, ledger = self._current_validation(), self.parts.ledger
        pending = FineTuneSummary(path=FINE_TUNE_FOLDER, exit_reason=PENDING)
        return Summary(
            weights_sha256=weights_sha256,
            top1=validated.top1 if validated else None,
            top5=validated.top5 if validated else None,
            updates=self.update,
            epochs=self.update / loop.updates_per_epoch,
            images=self.update * loop.samples_per_update,
            images_per_second=self._throughput.mean_images_per_second,
            seconds=self._seconds(),
            layout=self.plan.layout,
            exit_reason=reason,
            peak_bytes=[peak for peak, _ in self._stage_peaks],
            peak_stash=[sets for _, sets in self._stage_peaks],
            model=config.network.model,
            dataset=config.data.data,
            init_path=config.checkpoint.init_path,
            averaged=AverageSummary.of(self.averaged),
            live_average=AverageSummary.of(self.ema_saved),
            fine_tune=pending if config.fine_tune.half_res_training else None,
            skipped_updates=self.parts.trainer.update_step.guard.skipped,
            bad_records=0 if ledger is None else len(ledger.records),
        )
