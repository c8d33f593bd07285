"""Who hears of long work, and how far several threads are with it."""

from dataclasses import dataclass
from threading import Lock

from convoy.data.records.indexing import Notice, Progress, unheard


@dataclass(frozen=True)
class Hearing:
    """Who hears what: single lines, bytes of shards that are read, records that are done."""

    notice: Notice = unheard
    reading: Progress = unheard
    working: Progress = unheard


class Tally:
    """What is done, counted over all threads."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress = total, progress
        self._done = 0
        self._lock = Lock()
        progress(0, total)

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._progress(self._done, self._total)
