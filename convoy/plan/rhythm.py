"""When something is due that happens so many times per epoch: reports, checkpoints, validation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rhythm:
    """`times` in every `period` updates, evenly spread, and at the very end; 0 times is never."""

    times: int
    period: int
    end: int

    def due(self, update: int) -> bool:
        """Whether it happens after this update, counted from 1."""
        if self.times == 0:
            return False
        crossed = update * self.times // self.period > (update - 1) * self.times // self.period
        return crossed or update == self.end
