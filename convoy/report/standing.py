"""Where a run stands, gathered from its events: what every display shows."""

import time

from convoy.events import (
    Averaged,
    Began,
    Ended,
    Event,
    Noticed,
    Reported,
    Saved,
    Updated,
    Validated,
)
from convoy.report.throughput import Clock, Throughput


class Standing:
    """The newest of each kind of event, and what follows from them."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.began = Began(0, 0, 1, 0)
        self.update = 0
        self.reported: Reported | None = None
        self.validated: Validated | None = None
        self._throughput = Throughput(0, clock=clock)

    def take(self, event: Event) -> None:
        if not isinstance(event, Saved | Noticed):  # a save tells of an update long gone
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
            case Saved() | Averaged() | Noticed() | Ended():
                pass

    @property
    def epoch(self) -> int:
        """The epoch of the last update, counted from 1, behind those before the run."""
        within = max(0, self.update - 1) // max(1, self.began.updates_per_epoch)
        return self.began.first_epoch + within + 1

    @property
    def epochs(self) -> int:
        """A last epoch that ends early counts."""
        own = -(-self.began.updates // max(1, self.began.updates_per_epoch))
        return self.began.first_epoch + max(1, own)

    @property
    def images_per_second(self) -> float | None:
        """As reported; before the first report, as seen."""
        if self.reported is not None:
            return self.reported.images_per_second
        return self._throughput.images_per_second

    @property
    def seconds_left(self) -> float | None:
        return self._throughput.seconds_left(self.began.updates - self.update)
