"""Images per second and time left, from the times of single updates.

The first update pays for warm-up (memory, kernels, first batches), so its time is not counted.
"""

import time
from collections import deque
from collections.abc import Callable

Clock = Callable[[], float]


class Throughput:
    """A mean over the last updates for the display, and one over all for the summary."""

    def __init__(
        self, samples_per_update: int, window: int = 20, clock: Clock = time.monotonic
    ) -> None:
        self._samples_per_update = samples_per_update
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=window)
        self._seconds = 0.0
        self._updates = 0
        self._warm = False
        self._latest = clock()

    def take(self, seconds: float) -> None:
        """One more update is done."""
        self._latest = self._clock()
        if self._warm:
            self._recent.append(seconds)
            self._seconds += seconds
            self._updates += 1
        self._warm = True

    @property
    def images_per_second(self) -> float | None:
        """Over the last updates; None before the second one."""
        return self._rate(len(self._recent), sum(self._recent))

    @property
    def overall(self) -> float | None:
        """Over all updates but the first."""
        return self._rate(self._updates, self._seconds)

    def seconds_left(self, updates: int) -> float | None:
        """For that many more updates at the pace of the last ones; runs down between them."""
        if not self._recent:
            return None
        pace = sum(self._recent) / len(self._recent)
        since = min(self._clock() - self._latest, pace)  # a pause for validation is no progress
        return max(0.0, updates * pace - since)

    def _rate(self, updates: int, seconds: float) -> float | None:
        return updates * self._samples_per_update / seconds if seconds > 0 else None
