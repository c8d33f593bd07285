"""A gradient on its way between replicas, in portions: in one fixed order, two under way.

    backward    layer 9 ─── layer 8 ─── layer 7 ─── … ─── layer 0
    portions        └ begin 0    └ begin 1    └ settle 0, begin 2 …    `finish` does the rest

Backward completes late layers first, so their portions go first and may begin while it is still
busy. The order is computed beforehand from the network alone, and a portion waits for its turn even
if its weights come early: every replica posts the same messages in the same order, come what may.
"""

from collections.abc import Sequence
from typing import Protocol

from convoy.numerics.gradients import GradientTree, Node
from convoy.parallel.peers import Pending

UNDER_WAY = 2  # portions: one is added up, one arrives


class Portion(Protocol):
    """What is sent at once. `slot`, below `UNDER_WAY`, is its own while it is under way."""

    def stretches(self) -> list[range]:
        """The parts of the vectors that it reads and writes."""

    def begin(self, mine: list[Node], slot: int) -> Pending:
        """Post messages; our nodes are complete as far as its stretches go."""

    def settle(self, mine: list[Node], slot: int) -> Pending:
        """The messages have come: add up, and post those of the result, if there are any."""


class Exchange:
    """The portions of one tree's gradient, update after update."""

    def __init__(self, tree: GradientTree, portions: Sequence[Portion]) -> None:
        self.tree = tree
        extents = tree.extents()
        needs = [(one, weights_in(one.stretches(), extents)) for one in portions]
        # The weight that backward reaches last is the first of the network.
        self._turns = sorted(needs, key=lambda pair: -min(pair[1], default=0))
        self._begun = 0
        self._arriving: list[Pending] = []  # of the youngest portions that have begun
        self._leaving: list[Pending] = []

    def begin_ready(self) -> None:
        """Begin every portion whose turn it is and whose weights are summed up."""
        mine = self.tree.nodes()
        for _, weights in self._turns[self._begun :]:
            if not weights <= self.tree.summed:
                return
            self._begin_next(mine)

    def finish(self) -> None:
        """Everything that is left; afterwards the first node's vector holds the result."""
        mine = self.tree.nodes()
        for _ in self._turns[self._begun :]:
            self._begin_next(mine)
        while self._arriving:
            self._settle_oldest(mine)
        for pending in self._leaving:
            pending.wait()
        self._leaving.clear()
        self._begun = 0

    def _begin_next(self, mine: list[Node]) -> None:
        """Waits for the oldest portion when there is no room for another one.

        That one was begun at an earlier point of the same backward, which the other replicas reach
        without us: nobody can wait for one who waits for him.
        """
        if len(self._arriving) == UNDER_WAY:
            self._settle_oldest(mine)
        portion, _ = self._turns[self._begun]
        self._arriving.append(portion.begin(mine, self._begun % UNDER_WAY))
        self._begun += 1

    def _settle_oldest(self, mine: list[Node]) -> None:
        oldest = self._begun - len(self._arriving)
        portion, _ = self._turns[oldest]
        self._arriving.pop(0).wait()
        self._leaving.append(portion.settle(mine, oldest % UNDER_WAY))


def weights_in(stretches: Sequence[range], extents: Sequence[range]) -> frozenset[int]:
    """The places of the weights that lie there, if only in part."""
    return frozenset(
        place
        for place, extent in enumerate(extents)
        if any(one.start < extent.stop and extent.start < one.stop for one in stretches)
    )
