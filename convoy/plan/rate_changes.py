"""Where the rate of a run changes: all of it for programs, the telling part of it for people."""

from dataclasses import dataclass

from convoy.plan.learning_rate import Moves
from convoy.plan.loop import LoopPlan

_ROWS = 12  # of the table for people


@dataclass(frozen=True)
class RateChange:
    """An update whose rate is another one than that of the update before it."""

    update: int
    epoch: float  # before that update
    rate: float


@dataclass(frozen=True)
class ShownChanges:
    """Rows of a table; `left_out` more changes come before the last of them."""

    rows: tuple[RateChange, ...]
    left_out: int = 0


def rate_changes(loop: LoopPlan, most: int) -> list[RateChange]:
    """Every change, the first rate included. Of more than `most`, points on the way.

    A warm-up is then told by its ends, and a schedule that moves too often by points that lie
    evenly in it.
    """
    rates = loop.learning_rate
    warm, moves = rates.warm, rates.moves
    ramp = range(warm + 1) if warm + 1 + moves.count <= most else {0, warm}
    numbers = _evenly(moves.count, most - len(ramp))
    return _changed(loop, [*sorted(ramp), *map(moves.at, numbers)])


def shown_changes(loop: LoopPlan) -> ShownChanges:
    """The ends of the warm-up, then each move if they are few.

    Of many the first ones and the last; of a rate that moves at every update the quarters.
    """
    warm, moves = loop.learning_rate.warm, loop.learning_rate.moves
    ends = sorted({0, warm})
    room = _ROWS - len(ends)
    if moves.count <= room:
        return ShownChanges(tuple(_changed(loop, [*ends, *map(moves.at, range(moves.count))])))
    if moves.at_every_update:
        last = loop.updates - 1
        quarters = [last * quarter // 4 for quarter in range(1, 5)]
        return ShownChanges(
            tuple(_changed(loop, [*ends, *(one for one in quarters if one > warm)]))
        )
    return _first_and_last(loop, ends, moves, room - 2)  # a line tells how many are left out


def _first_and_last(loop: LoopPlan, ends: list[int], moves: Moves, first: int) -> ShownChanges:
    shown = [*ends, *map(moves.at, range(first)), moves.at(moves.count - 1)]
    rows = tuple(_changed(loop, shown))
    return ShownChanges(rows, moves.count - first - 1 if len(rows) == len(shown) else 0)


def _evenly(count: int, most: int) -> list[int]:
    """Numbers below `count`: all, or so many with the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [number * (count - 1) // (most - 1) for number in range(most)]


def _changed(loop: LoopPlan, updates: list[int]) -> list[RateChange]:
    """Those of them at which the rate is another one than at the one before."""
    rates = loop.learning_rate
    changes: list[RateChange] = []
    for update in updates:
        rate = rates.rate(update)
        if not changes or rate != changes[-1].rate:
            changes.append(RateChange(update, loop.epoch_after(update), rate))
    return changes
