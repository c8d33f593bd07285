"""Where a stage is in its work: what layers that draw by chance need to know.

A draw is a function of the update, the micro-batch and the layer, so that it does not depend on
who computes it, or how often.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Moment:
    """The micro-batch at hand. Those of a replica enter a stage in order, update by update."""

    micros: range = range(1)  # those of an update that pass here, counted over all replicas
    begun: int = 0  # that have entered in training, since the first update of the run
    number: int = 0  # the one at hand, counted likewise

    @property
    def update(self) -> int:
        return self.number // len(self.micros)

    @property
    def micro(self) -> int:
        """Counted over all replicas."""
        return self.micros[self.number % len(self.micros)]

    def go_on_after(self, updates: int) -> None:
        """So many updates lie behind."""
        self.begun = updates * len(self.micros)

    def enter(self) -> None:
        """The next micro-batch comes."""
        self.number = self.begun
        self.begun += 1

    @contextmanager
    def again(self, number: int) -> Iterator[None]:
        """Back to a micro-batch that has passed: it is computed again."""
        at_hand, self.number = self.number, number
        try:
            yield
        finally:
            self.number = at_hand
