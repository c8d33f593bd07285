"""Threads that read, and how they are told to stop. Decoding lets them run side by side."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import TracebackType
from typing import TypeVar

One = TypeVar("One")
Result = TypeVar("Result")


class Team:
    """Open it with `with`: whatever ends that, an interruption too, no thread goes on."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers)
        self._stop = Event()

    def stopped(self) -> bool:
        return self._stop.is_set()

    def each(self, work: Callable[[One], Result], things: Iterable[One]) -> Iterator[Result]:
        """The results, in the order of the things."""
        return self._pool.map(work, things)

    def __enter__(self) -> "Team":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
