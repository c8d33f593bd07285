"""Saving beside training: the copy is taken at once, the writing happens in one other thread.

At most one save is under way. What became of it is told on the caller's own thread, at the next
update boundary, so that nobody who listens needs a lock.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from convoy.checkpoint.contents import Contents
from convoy.checkpoint.one_block import room_for
from convoy.checkpoint.store import Store
from convoy.errors import StorageError

OnSaved = Callable[[int, Path, float], None]  # update, folder, seconds of writing
OnFailed = Callable[[int, StorageError], None]  # update, what the file system refused


_NICENESS = 10


@dataclass(frozen=True)
class _Written:
    path: Path
    seconds: float


def stop_the_run(update: int, error: StorageError) -> None:
    """The policy `stop`. A callback that only reports, and returns, is the policy `continue`."""
    raise StorageError(f"the checkpoint of update {update} was not saved: {error}") from error


def _stand_back() -> None:
    """Let training go first: measured, a save then costs it less than half of what it did."""
    if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class BackgroundSaver:
    """Saves without keeping the weights waiting for the disk.

    Between saves the memory of the copy is kept for the next one, which is then quicker, or given
    back: a run that keeps its optimizer's state off the device has none to spare.
    """

    def __init__(
        self,
        store: Store,
        keep: int | None,  # None keeps all
        on_saved: OnSaved,
        on_failed: OnFailed = stop_the_run,
        keep_copy: bool = True,
    ) -> None:
        self._store = store
        self._keep = keep
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._keep_copy = keep_copy
        self._thread = ThreadPoolExecutor(1, "checkpoint", initializer=_stand_back)
        self._pending: tuple[int, Future[_Written]] | None = None
        self._copy: Contents | None = None
        self.waits = 0  # saves that found the one before still under way
        self.waited_seconds = 0.0

    def save(self, contents: Contents, update: int) -> None:
        """Copy now, write later; tensors may change as soon as this returns."""
        self._wait()
        self._settle()
        copy = contents.copy(reuse=self._copy if self._keep_copy else room_for(contents))
        self._copy = copy if self._keep_copy else None  # else the thread alone holds it
        self._pending = update, self._thread.submit(self._write, copy, update)

    def check(self) -> None:
        """Call at every update boundary: tells of a finished save, raises a failed one."""
        if self._pending and self._pending[1].done():
            self._settle()

    def finish(self) -> None:
        """Wait for the last save and tell of it; nothing can be saved afterwards."""
        self._thread.shutdown(wait=True)
        self._settle()

    def _wait(self) -> None:
        if self._pending is None or self._pending[1].done():
            return
        began = time.monotonic()
        self._pending[1].exception()
        self.waits += 1
        self.waited_seconds += time.monotonic() - began

    def _settle(self) -> None:
        """Tell what became of the save that is over, once."""
        if self._pending is None:
            return
        (update, future), self._pending = self._pending, None
        try:
            written = future.result()
        except StorageError as error:
            self._on_failed(update, error)
        else:
            self._on_saved(update, written.path, written.seconds)
        finally:
            del future  # an error knows this frame and the copy: together they would stay

    def _write(self, contents: Contents, update: int) -> _Written:
        """In the other thread: the new one is read back before an old one goes."""
        began = time.monotonic()
        path = self._store.save(contents, update)
        self._store.verify(update)
        if self._keep is not None:
            self._store.prune(self._keep, spare=update)
        return _Written(path, time.monotonic() - began)
