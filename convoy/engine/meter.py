"""Loss and accuracy since the last report. Reads a device only when it is asked."""

from dataclasses import dataclass

from convoy.parallel.pipeline import Passed


@dataclass(frozen=True)
class Totals:
    """Sums that a checkpoint can hold, so that a resumed run reports the same."""

    loss: float = 0.0  # sum of the micro-batches' mean losses
    micro_batches: int = 0
    right: int = 0
    samples: int = 0


class Meter:
    """Adds up what passes left behind."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._unread: list[Passed] = []

    def add(self, passed: list[Passed]) -> None:
        """Note the results of one update without waiting for the device."""
        self._unread.extend(passed)

    def totals(self) -> Totals:
        """The sums so far, added in the order of the micro-batches."""
        totals = self._totals
        for one in self._unread:
            totals = Totals(
                totals.loss + float(one.loss),
                totals.micro_batches + 1,
                totals.right + int(one.right),
                totals.samples + one.samples,
            )
        self._unread.clear()
        self._totals = totals
        return totals

    def start_from(self, totals: Totals) -> None:
        """Go on from these sums; `Totals()` starts a new report."""
        self._unread.clear()
        self._totals = totals
