"""When something is due that happens so many times per epoch: reports, checkpoints, validation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rhythm:
    """`times` in every `period` updates, evenly spread, and at the very end; 0 times is never.

    The first period may begin later: then it happens after `first` updates, and not before.
    """

    times: int
    period: int
    end: int
    first: int = 0

    def due(self, update: int) -> bool:
        """Whether it happens after this update, counted from 1."""
        if self.times == 0:
            return False
        if update in (self.first, self.end):
            return True
        since = update - self.first
        crossed = since * self.times // self.period > (since - 1) * self.times // self.period
        return crossed and since > 0
