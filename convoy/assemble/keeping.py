"""What a run knows of whoever keeps it: the first process does, all others only take part."""

from typing import Protocol

from convoy.checkpoint.contents import Contents
from convoy.engine.stopping import StopRequest
from convoy.events import Validated
from convoy.report.summary import Summary


class Keeping(Protocol):
    """The face of both."""

    def save(self, contents: Contents | None, update: int) -> None:
        """Copy now, write beside training."""

    def check(self) -> None:
        """At every update: tell of a save that is over, raise one that failed."""

    def finish(self, update: int) -> None:
        """Wait for the last save; that of this update must have held."""

    def average(self, stop: StopRequest) -> str:
        """Make one out of the checkpoints of a finished run; says why the run ends."""

    def keep_average(self, contents: Contents | None, measured: Validated | None) -> None:
        """Write what the run has averaged on its way."""

    def sum_up(self, summary: Summary) -> None:
        """Write what the run came to."""


class KeptElsewhere:
    """Another process keeps the run."""

    def save(self, contents: Contents | None, update: int) -> None:
        """Our part was given when the state was captured."""

    def check(self) -> None:
        """Nothing of ours is under way."""

    def finish(self, update: int) -> None:
        """Nothing of ours is under way."""

    def average(self, stop: StopRequest) -> str:
        """The first process needs nobody for it."""
        del stop
        return "done"

    def keep_average(self, contents: Contents | None, measured: Validated | None) -> None:
        """Our part was given when it was gathered."""

    def sum_up(self, summary: Summary) -> None:
        """Told by the first process."""
