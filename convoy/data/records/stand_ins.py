"""What takes the place of a record that cannot be read: the next one of its class, going around.

The label of a place never changes, so a process that has labels alone need not know; nothing that
comes later shifts; and whoever reads the place again, in another layout or later, finds the same.
"""

from collections.abc import Iterator

import numpy as np

from convoy.data.records.record import UNKNOWN
from convoy.data.source import Labels
from convoy.errors import DataError


class StandIns:
    """The labels of all places, and who may stand in."""

    def __init__(self, known: Labels) -> None:
        """`known` has UNKNOWN where a record is bad so far that its class cannot be told."""
        self._known = known
        self.labels = _filled(known)

    def after(self, number: int) -> Iterator[int]:
        """Records of the same class, in the order in which they are asked."""
        same = np.flatnonzero(self._known == self.labels[number])
        start = int(np.searchsorted(same, number, side="right"))
        for place in range(len(same)):
            candidate = int(same[(start + place) % len(same)])
            if candidate != number:
                yield candidate


def _filled(known: Labels) -> Labels:
    """A place without a label takes that of the next one with a label, going around."""
    good = np.flatnonzero(known != UNKNOWN)
    if len(good) == 0:
        raise DataError("none of the records can be used")
    if len(good) == len(known):
        return known
    following = np.searchsorted(good, np.arange(len(known)))
    filled: Labels = known[good[following % len(good)]]
    return filled
