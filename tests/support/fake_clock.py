"""A clock for tests of measurements: time passes only during calls of `wait`.

Overlapping waits count once, so parallel readers are faster; the load of the machine does not
count.
"""

from threading import Lock
from time import sleep

_TICK = 1e-6  # seconds between two calls, so that no interval is zero


class WaitingClock:
    """Replaces `perf_counter`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._lock = Lock()

    def __call__(self) -> float:
        with self._lock:
            self._now += _TICK
            return self._now

    def wait(self, seconds: float) -> None:
        """Wait, in any thread."""
        start = self()
        sleep(seconds)
        with self._lock:
            self._now = max(self._now, start + seconds)
