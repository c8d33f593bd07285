"""Progress callbacks, a thread-safe progress counter, and a thread pool that stops as one."""

from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from threading import Event, Lock
from typing import TypeVar

Notice = Callable[[str], None]  # a line for the user
Progress = Callable[[int, int], None]  # done, total

Item = TypeVar("Item")
Result = TypeVar("Result")


def no_op(*_: object) -> None:
    """A callback that does nothing."""


@dataclass(frozen=True)
class ProgressCallbacks:
    """Callbacks for notices, for bytes of shards read, and for records processed."""

    on_notice: Notice = no_op
    bytes_progress: Progress = no_op
    records_progress: Progress = no_op


SILENT = ProgressCallbacks()


class ProgressCounter:
    """Count the work done by all threads."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress = total, progress
        self._done = 0
        self._lock = Lock()
        progress(0, total)

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._progress(self._done, self._total)


class WorkerThreads(ThreadPoolExecutor):
    """A thread pool whose work is cancelled when its `with` block ends, for whatever reason."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._stop = Event()

    def run(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results in the order of the items; raise the first error immediately."""
        futures = [self.submit(work, item) for item in items]
        for future in as_completed(futures):
            future.result()
        return [future.result() for future in futures]

    def raise_if_stopped(self) -> None:
        """Raise CancelledError if the pool is stopping; long work calls this between records."""
        if self._stop.is_set():
            raise CancelledError

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self.shutdown(cancel_futures=True)
