"""A clock for tests of measurements: time passes while somebody waits, and at no other time.

Waits that overlap count once, so more readers at a time still gain; what else the machine does
meanwhile does not count.
"""

from threading import Lock
from time import sleep

_TICK = 1e-6  # seconds between two looks: nothing takes no time at all


class WaitingClock:
    """Stands in for `perf_counter`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._lock = Lock()

    def __call__(self) -> float:
        with self._lock:
            self._now += _TICK
            return self._now

    def wait(self, seconds: float) -> None:
        """In any thread."""
        began = self()
        sleep(seconds)
        with self._lock:
            self._now = max(self._now, began + seconds)
