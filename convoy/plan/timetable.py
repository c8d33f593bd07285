"""Place the actions of a schedule in time, and draw them for people: a row per process.

A column is a time step (grouped: a forward and a backward), a half-step (interleaved, looped), a
third-step (zero-bubble) or one device's turn (sequential). A process of several stages is one
row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from convoy.plan.actions import Action, step_before
from convoy.plan.schedules import Schedule

Cell = tuple[Action, ...]

IDLE = "–"
GAP = "  "


@dataclass(frozen=True)
class Timetable:
    """Who does what when: `rows[process][column]` holds the actions of that time, in order."""

    unit: str  # what one column is
    rows: tuple[tuple[Cell, ...], ...]
    row_name: str = "stage"

    @property
    def columns(self) -> int:
        return len(self.rows[0])


def place(schedule: Schedule, stages: int, micro_batches: int) -> Timetable:
    """The timetable of one update."""
    orders = schedule.orders(stages, micro_batches)
    columns = schedule.columns(stages, micro_batches)
    length = 1 + max(max(places) for places in columns)
    rows = []
    for order, places in zip(orders, columns, strict=True):
        row: list[Cell] = [()] * length
        for action, column in zip(order, places, strict=True):
            row[column] += (action,)
        rows.append(tuple(row))
    row_name = "stage" if schedule.stages_per_process == 1 else "process"
    return Timetable(schedule.unit, tuple(rows), row_name)


def draw(timetable: Timetable, width: int | None = None) -> list[str]:
    """Lines of text: a header with the time, then the rows. A width leaves out the middle.

    The first and the last column always stay, so a very small width is exceeded.
    """
    labels = [
        timetable.unit,
        *(f"{timetable.row_name} {row}" for row in range(len(timetable.rows))),
    ]
    side = max(map(len, labels))
    shown = _ends(timetable, timetable.columns) if width is None else _fit(timetable, width - side)
    table = [[label.ljust(side) for label in labels], *shown]
    return [GAP.join(cells).rstrip() for cells in zip(*table, strict=True)]


def _column(timetable: Timetable, time: int) -> list[str]:
    """One column as text of equal width: the time, then a cell per row."""
    cells = [str(time), *(" ".join(map(str, row[time])) or IDLE for row in timetable.rows)]
    width = max(map(len, cells))
    return [cell.ljust(width) for cell in cells]


def _fit(timetable: Timetable, room: int) -> list[list[str]]:
    """Whole if it fits; otherwise as many columns of both ends as fit, and their number between."""
    most = max(2, room // (len(GAP) + 1))  # a column is at least one character wide
    for kept in range(min(timetable.columns, most), 2, -1):
        shown = _ends(timetable, kept)
        if _room(shown) <= room:
            return shown
    return _ends(timetable, min(timetable.columns, 2))


def _ends(timetable: Timetable, kept: int) -> list[list[str]]:
    """So many of the first and the last columns, with a note of how many are left out."""
    end = timetable.columns
    head = [_column(timetable, time) for time in range((kept + 1) // 2)]
    tail = [_column(timetable, time) for time in range(end - kept // 2, end)]
    if kept == end:
        return [*head, *tail]
    label = f"… {end - kept} columns …"
    return [*head, [label, *("…".center(len(label)) for _ in timetable.rows)], *tail]


def _room(columns: list[list[str]]) -> int:
    """Characters the columns take, with the gap before each."""
    return sum(len(GAP) + len(column[0]) for column in columns)


@dataclass(frozen=True)
class TimedAction:
    """An action of one stage, and the column of the timetable in which it stands."""

    stage: int
    action: Action
    column: int


def timed_orders(schedule: Schedule, stages: int, micro_batches: int) -> list[list[TimedAction]]:
    """What each process does in an update, with its times."""
    orders = schedule.orders(stages, micro_batches)
    columns = schedule.columns(stages, micro_batches)
    return [
        [
            TimedAction(process if action.stage is None else action.stage, action, column)
            for action, column in zip(order, places, strict=True)
        ]
        for process, (order, places) in enumerate(zip(orders, columns, strict=True))
    ]


def received_ahead(
    orders: Sequence[Sequence[TimedAction]], row: Sequence[TimedAction]
) -> list[bool]:
    """For each action of a row: whether the input of the action after it arrives while it runs.

    It does if the stage that sends it stands in the same column or an earlier one. Any other input
    is received when it is needed: it would only take memory before.
    """
    columns = {
        (timed.stage, timed.action.letter, timed.action.micro): timed.column
        for order in orders
        for timed in order
    }
    ahead = []
    for current, following in pairwise(row):
        sender = step_before(following.stage, following.action)
        comes = sender[0] != following.stage and sender in columns
        ahead.append(comes and columns[sender] <= current.column)
    return [*ahead, False]
