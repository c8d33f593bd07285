"""Callbacks of long work, a progress counter for threads, and threads that stop together."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from threading import Event, Lock
from typing import TypeVar

Notice = Callable[[str], None]  # a line for the user
Progress = Callable[[int, int], None]  # done, total

Item = TypeVar("Item")
Result = TypeVar("Result")


def ignore(*args: object) -> None:
    """A callback that does nothing."""
    del args


@dataclass(frozen=True)
class ProgressCallbacks:
    """Called with single lines, bytes of shards read, records done."""

    notice: Notice = ignore
    reading: Progress = ignore
    working: Progress = ignore


class ProgressCounter:
    """Counts what all threads have done."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress = total, progress
        self._done = 0
        self._lock = Lock()
        progress(0, total)

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._progress(self._done, self._total)


class StoppedError(Exception):
    """Another thread failed, or the user interrupted the program."""


class WorkerThreads:
    """A thread pool for a `with` block: when the block ends, for whatever reason, all work ends."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers)
        self._stop = Event()

    def run(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results in the order of the items; the first error is raised at once."""
        futures = [self._pool.submit(work, item) for item in items]
        for future in as_completed(futures):
            future.result()
        return [future.result() for future in futures]

    def check(self) -> None:
        """Called by long work between two records."""
        if self._stop.is_set():
            raise StoppedError

    def __enter__(self) -> "WorkerThreads":
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
