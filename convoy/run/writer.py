"""Writes a run: its checkpoints, their average at its end, and its summary."""

from dataclasses import replace
from pathlib import Path

from convoy.checkpoint.background import BackgroundSaver, stop_the_run
from convoy.checkpoint.format import Contents, weights_sha256
from convoy.checkpoint.store import Store
from convoy.errors import CheckpointError, StorageError
from convoy.events import Averaged, Noticed, Observers, Saved, StopRequest, Validated
from convoy.plan.plan import RunPlan
from convoy.report.summary import Summary
from convoy.run.averaging import AveragingStopped, average_checkpoints
from convoy.run.folder import RunFolder
from convoy.run.validation import validate_checkpoints


class NullWriter:
    """On every process but the first, which writes for all."""

    def save(self, contents: Contents | None, update: int) -> None:
        """The state was sent to the first process when it was captured."""

    def check(self) -> None:
        """No save is pending."""

    def finish(self, update: int) -> None:
        """No save is pending."""

    def average(self, stop: StopRequest) -> Averaged | None:
        """The first process needs nobody for it."""

    def save_ema(self, contents: Contents | None, validated: Validated | None) -> Averaged | None:
        """The average was sent to the first process when it was gathered."""

    def write_summary(self, summary: Summary) -> None:
        """Written by the first process."""


class RunWriter:
    """Writes checkpoints, averages and the summary into the run folder."""

    def __init__(self, folder: RunFolder, plan: RunPlan, observers: Observers) -> None:
        self.folder = folder
        self.config = config = plan.config
        # What a stop saves out of turn must not be part of an average.
        self._counts = plan.loop.checkpoints.due
        self.store = Store(folder.checkpoints, self._counts)
        self.store.check_writable()
        self.observers = observers
        self._failed: int | None = None  # the last update that could not be saved
        checkpoint = config.checkpoint
        on_failed = stop_the_run if checkpoint.on_save_error == "stop" else self._report_failed
        # A copy that is held for the next save would undo the offload of optimizer state.
        keep_copy = not config.memory.offload_optimizer
        self._saver = BackgroundSaver(
            self.store, checkpoint.keep_last or None, self._report_saved, on_failed, keep_copy
        )

    def save(self, contents: Contents | None, update: int) -> None:
        assert contents is not None, "the first process gathers what is saved"
        self._saver.save(contents, update)

    def check(self) -> None:
        """After every update: report a save that is over, raise one that failed."""
        self._saver.check()

    def finish(self, update: int) -> None:
        """Wait for the last save; that of this update must have succeeded."""
        self._saver.finish()
        if self._failed == update:
            raise StorageError(f"the last weights, of update {update}, could not be saved")

    def average(self, stop: StopRequest) -> Averaged | None:
        """One model out of the checkpoints of a finished run; None if a stop is urgent."""
        try:
            averaged = average_checkpoints(
                self.config, self.store.folder, lambda: stop.is_urgent, self._counts
            )
        except AveragingStopped:
            return None
        path = Path(averaged.path)
        averaged = replace(averaged, path=self._named(path))
        if self.config.validation.validation_mode == "none":
            return averaged
        (score,) = validate_checkpoints(self.config, [path])
        if isinstance(score, CheckpointError):
            raise score
        validated = score.validated
        return replace(averaged, top1=validated.top1, top5=validated.top5, loss=validated.loss)

    def save_ema(self, contents: Contents | None, validated: Validated | None) -> Averaged | None:
        assert contents is not None, "the first process gathers what is saved"
        update, name = contents.update, f"ema-{self.config.average.ema_decay:g}"
        path = Store(self.store.folder / "averaged" / name).save(contents, update)
        averaged = Averaged(update, self._named(path), "ema", 0, weights_sha256(contents.model))
        if validated is None:
            return averaged
        return replace(
            averaged,
            top1=validated.average_top1,
            top5=validated.average_top5,
            loss=validated.average_loss,
        )

    def write_summary(self, summary: Summary) -> None:
        summary.write(self.folder.summary)

    def _named(self, path: Path) -> str:
        return str(path.relative_to(self.folder.path))

    def _report_saved(self, update: int, path: Path, seconds: float) -> None:
        self.observers.notify(Saved(update, self._named(path), seconds))

    def _report_failed(self, update: int, error: StorageError) -> None:
        self._failed = update
        self.observers.notify(Noticed("save_failed", f"training goes on: {error}", update))
