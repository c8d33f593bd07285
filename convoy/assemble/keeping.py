"""Who keeps a run's checkpoints: the first process does, all others only take part."""

from pathlib import Path
from typing import Protocol

from convoy.checkpoint.background import BackgroundSaver, stop_the_run
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.store import Store
from convoy.config.sections.keeping import CheckpointConfig
from convoy.engine.outfeed import Outfeed
from convoy.errors import StorageError
from convoy.events import Noticed, Saved
from convoy.report.run_folder import RunFolder
from convoy.report.summary import Summary


class Keeping(Protocol):
    """What a run knows of whoever keeps it."""

    def save(self, contents: Contents | None, update: int) -> None:
        """Copy now, write beside training."""

    def check(self) -> None:
        """At every update: tell of a save that is over, raise one that failed."""

    def finish(self, update: int) -> None:
        """Wait for the last save; that of this update must have held."""

    def sum_up(self, summary: Summary) -> None:
        """Write what the run came to."""


class Keeper:
    """Writes into the run folder, and tells of it by the outfeed."""

    def __init__(
        self, folder: RunFolder, config: CheckpointConfig, outfeed: Outfeed, keep_copy: bool
    ) -> None:
        """`keep_copy` holds on to the memory of a save for the next one."""
        self.folder = folder
        self.store = Store(folder.checkpoints)
        self.store.check_writable()
        self.outfeed = outfeed
        self._failed: int | None = None  # the last update that could not be saved
        on_failed = stop_the_run if config.on_save_error == "stop" else self._tell_failed
        self._saver = BackgroundSaver(
            self.store, config.keep_last or None, self._tell_saved, on_failed, keep_copy
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

    def sum_up(self, summary: Summary) -> None:
        summary.write(self.folder.summary)

    def _tell_saved(self, update: int, path: Path, seconds: float) -> None:
        self.outfeed.put(Saved(update, str(path.relative_to(self.folder.path)), seconds))

    def _tell_failed(self, update: int, error: StorageError) -> None:
        self._failed = update
        self.outfeed.put(Noticed("save_failed", f"training goes on: {error}", update))


class KeptElsewhere:
    """Another process keeps the run."""

    def save(self, contents: Contents | None, update: int) -> None:
        """Our part was given when the state was captured."""

    def check(self) -> None:
        """Nothing of ours is under way."""

    def finish(self, update: int) -> None:
        """Nothing of ours is under way."""

    def sum_up(self, summary: Summary) -> None:
        """Told by the first process."""
