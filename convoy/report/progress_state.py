"""The progress of a run, gathered from its events: what every display shows; speed, time left."""

import time
from collections import deque
from collections.abc import Callable

from convoy.events import Began, Event, Noticed, Reported, Saved, Updated, Validated

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
        self._is_warm = False  # the first update is slower and does not count
        self._latest = clock()

    def take(self, seconds: float) -> None:
        """One more update is done."""
        self._latest = self._clock()
        if self._is_warm:
            self._recent.append(seconds)
            self._seconds += seconds
            self._updates += 1
        self._is_warm = True

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


class ProgressState:
    """The newest event of each type, and what follows from them."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.began = Began(0, 0, 1, 0)
        self.update = 0
        self.reported: Reported | None = None
        self.validated: Validated | None = None
        self._throughput = Throughput(0, clock=clock)

    def take(self, event: Event) -> None:
        if not isinstance(event, Saved | Noticed):  # a save is of an earlier update
            self.update = event.update
        match event:
            case Began():
                self.began = event
                self._throughput = Throughput(event.samples_per_update, clock=self._clock)
            case Updated():
                self._throughput.take(event.seconds)
            case Reported():
                self.reported = event
            case Validated():
                self.validated = event

    @property
    def epoch(self) -> int:
        """The epoch of the last update, counted from 1, after those before the run."""
        within = max(0, self.update - 1) // max(1, self.began.updates_per_epoch)
        return self.began.first_epoch + within + 1

    @property
    def epochs(self) -> int:
        """A last epoch that ends early counts."""
        epochs = -(-self.began.updates // max(1, self.began.updates_per_epoch))
        return self.began.first_epoch + max(1, epochs)

    @property
    def images_per_second(self) -> float | None:
        """As reported; before the first report, as measured here."""
        if self.reported is not None:
            return self.reported.images_per_second
        return self._throughput.images_per_second

    @property
    def seconds_left(self) -> float | None:
        return self._throughput.seconds_left(self.began.updates - self.update)
