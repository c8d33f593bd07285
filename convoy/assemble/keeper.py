"""Keeps a run: its checkpoints, their average at its end, and what it came to."""

from dataclasses import replace
from pathlib import Path

from convoy.assemble.averaging import Average, AveragingStopped, average_checkpoints
from convoy.assemble.validation import validate_checkpoints
from convoy.checkpoint.background import BackgroundSaver, stop_the_run
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.digest import weights_sha256
from convoy.checkpoint.store import Store
from convoy.engine.outfeed import Outfeed
from convoy.engine.stopping import StopRequest
from convoy.errors import CheckpointError, StorageError
from convoy.events import Averaged, Noticed, Saved, Validated
from convoy.plan.plan import RunPlan
from convoy.report.run_folder import RunFolder
from convoy.report.summary import Summary


class Keeper:
    """Writes into the run folder, and tells of it by the outfeed."""

    def __init__(self, folder: RunFolder, plan: RunPlan, outfeed: Outfeed, keep_copy: bool) -> None:
        """`keep_copy` holds on to the memory of a save for the next one."""
        self.folder = folder
        self.config = config = plan.config
        # What a stop saves out of turn must leave no trace in the average.
        self._counts = plan.loop.checkpoints.due
        self.store = Store(folder.checkpoints, self._counts)
        self.store.check_writable()
        self.outfeed = outfeed
        self._failed: int | None = None  # the last update that could not be saved
        wish = config.checkpoint
        on_failed = stop_the_run if wish.on_save_error == "stop" else self._tell_failed
        self._saver = BackgroundSaver(
            self.store, wish.keep_last or None, self._tell_saved, on_failed, keep_copy
        )

    def save(self, contents: Contents | None, update: int) -> None:
        assert contents is not None, "the first process gathers what is kept"
        self._saver.save(contents, update)

    def check(self) -> None:
        self._saver.check()

    def finish(self, update: int) -> None:
        self._saver.finish()
        if self._failed == update:
            raise StorageError(f"the last weights, of update {update}, could not be saved")

    def average(self, stop: StopRequest) -> str:
        try:
            made = average_checkpoints(
                self.config, self.store.folder, lambda: stop.is_urgent, self._counts
            )
        except AveragingStopped:
            return stop.reason or "done"
        self.outfeed.put(self._measured(made))
        return "done"

    def _measured(self, made: Average) -> Averaged:
        """As `convoy validate` measures it, if this run validates at all."""
        path = self._named(made.path)
        told = Averaged(made.update, path, made.strategy, made.checkpoints, made.weights_sha256)
        if self.config.validation.validation_mode == "none":
            return told
        (score,) = validate_checkpoints(self.config, [made.path])
        if isinstance(score, CheckpointError):
            raise score
        one = score.validated
        return replace(told, top1=one.top1, top5=one.top5, loss=one.loss)

    def keep_average(self, contents: Contents | None, measured: Validated | None) -> None:
        assert contents is not None, "the first process gathers what is kept"
        update, decay = contents.update, self.config.average.ema_decay
        made = Store(self.store.folder / "averaged" / f"ema-{decay:g}").save(contents, update)
        digest = weights_sha256(contents.model)
        told = Averaged(update, self._named(made), "ema", 0, digest)
        if measured is not None:
            top1, top5, loss = measured.average_top1, measured.average_top5, measured.average_loss
            told = replace(told, top1=top1, top5=top5, loss=loss)
        self.outfeed.put(told)

    def sum_up(self, summary: Summary) -> None:
        summary.write(self.folder.summary)

    def _named(self, path: Path) -> str:
        return str(path.relative_to(self.folder.path))

    def _tell_saved(self, update: int, path: Path, seconds: float) -> None:
        self.outfeed.put(Saved(update, self._named(path), seconds))

    def _tell_failed(self, update: int, error: StorageError) -> None:
        self._failed = update
        self.outfeed.put(Noticed("save_failed", f"training goes on: {error}", update))
