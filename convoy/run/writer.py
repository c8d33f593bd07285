"""Write the files of a run: checkpoints, averages and summary."""

from dataclasses import replace
from pathlib import Path

from convoy.checkpoint.background import BackgroundCheckpointWriter, raise_save_error
from convoy.checkpoint.format import CheckpointContents, weights_sha256
from convoy.checkpoint.store import CheckpointStore
from convoy.errors import CheckpointError, StorageError
from convoy.events import Averaged, Noticed, Observers, Saved, StopRequest, Validated
from convoy.planning.plan import RunPlan
from convoy.report.summary import Summary
from convoy.run.averaging import AveragingInterrupted, average_checkpoints
from convoy.run.folder import RunFolder
from convoy.run.validation import validate_checkpoints


class NullWriter:
    """Writes nothing: used on all ranks but rank 0, which writes for all."""

    def _write_nothing(self, *_: object) -> Averaged | None:
        return None

    save = check = finish = average = save_ema = write_summary = _write_nothing


class RunWriter:
    """Write checkpoints, averages and the summary to the run folder."""

    def __init__(self, folder: RunFolder, plan: RunPlan, observers: Observers) -> None:
        self.folder = folder
        self.config = config = plan.config
        # A checkpoint saved at a stop, outside the schedule, must not be part of an average.
        self._is_scheduled = plan.loop.checkpoints.is_due
        self.store = CheckpointStore(folder.checkpoints, self._is_scheduled)
        self.store.check_writable()
        self.observers = observers
        self._failed_update: int | None = None  # the last update that could not be saved
        checkpoint = config.checkpoint
        on_failed = raise_save_error if checkpoint.on_save_error == "stop" else self._report_failed
        # A copy reused for the next save would undo the offload of optimizer state.
        keep_copy = not config.memory.offload_optimizer
        self._saver = BackgroundCheckpointWriter(
            self.store, checkpoint.keep_last or None, self._report_saved, on_failed, keep_copy
        )

    def save(self, contents: CheckpointContents | None) -> None:
        assert contents is not None, "contents must be gathered on rank 0"
        self._saver.save(contents)

    def check(self) -> None:
        """Report a finished save, raise a failed one; called after every update."""
        self._saver.poll()

    def finish(self, update: int) -> None:
        """Wait for the last save; raise StorageError if this update could not be saved."""
        self._saver.close()
        if self._failed_update == update:
            raise StorageError(f"the final weights (update {update}) could not be saved")

    def average(self, stop: StopRequest) -> Averaged | None:
        """Average the checkpoints of a finished run; None if a stop is urgent."""
        try:
            averaged = average_checkpoints(
                self.config, self.store.folder, lambda: stop.is_urgent, self._is_scheduled
            )
        except AveragingInterrupted:
            return None
        path = Path(averaged.path)
        averaged = replace(averaged, path=self._relative_path(path))
        if self.config.validation.validation_mode == "none":
            return averaged
        (score,) = validate_checkpoints(self.config, [path])
        if isinstance(score, CheckpointError):
            raise score
        validated = score.validated
        return replace(averaged, top1=validated.top1, top5=validated.top5, loss=validated.loss)

    def save_ema(
        self, contents: CheckpointContents | None, validated: Validated | None
    ) -> Averaged | None:
        assert contents is not None, "contents must be gathered on rank 0"
        update, name = contents.update, f"ema-{self.config.average.ema_decay:g}"
        path = CheckpointStore(self.store.folder / "averaged" / name).save(contents)
        averaged = Averaged(
            update, self._relative_path(path), "ema", 0, weights_sha256(contents.model)
        )
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

    def _relative_path(self, path: Path) -> str:
        return str(path.relative_to(self.folder.path))

    def _report_saved(self, update: int, path: Path, seconds: float) -> None:
        self.observers.notify(Saved(update, self._relative_path(path), seconds))

    def _report_failed(self, update: int, error: StorageError) -> None:
        self._failed_update = update
        self.observers.notify(Noticed("save_failed", f"training continues: {error}", update))
