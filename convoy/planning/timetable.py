"""Timetable of a schedule and its rendering as text, with one row per process.

A column is a time step (grouped: a forward and a backward), a half-step (interleaved, looped), a
third-step (zero-bubble) or a slot (sequential). A process with several stages is one row.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from convoy.planning.actions import Action, dependency
from convoy.planning.schedules import Schedule

Cell = tuple[Action, ...]

IDLE_CELL = "–"
GAP = "  "


@dataclass(frozen=True)
class Timetable:
    """`rows[process][column]` are the actions of a process in a column, in order."""

    column_unit: str  # name of a column
    rows: tuple[tuple[Cell, ...], ...]
    row_name: str = "stage"
    row_labels: tuple[str, ...] | None = None  # by default the name and the index of each row

    @property
    def columns(self) -> int:
        return len(self.rows[0])


def make_timetable(schedule: Schedule, stages: int, micro_batches: int) -> Timetable:
    rows, length = [], schedule.num_columns(stages, micro_batches)
    for order in timed_actions(schedule, stages, micro_batches):
        row: list[Cell] = [()] * length
        for timed in order:
            row[timed.column] += (timed.action,)
        rows.append(tuple(row))
    row_name = "stage" if schedule.stages_per_process == 1 else "process"
    return Timetable(schedule.column_unit, tuple(rows), row_name)


def draw_timetable(timetable: Timetable, width: int = sys.maxsize) -> list[str]:
    """Render a header line and a line per row; columns in the middle are omitted to fit `width`.

    The first and the last column are always shown, even if they exceed a very small width.
    """
    numbered = [f"{timetable.row_name} {row}" for row in range(len(timetable.rows))]
    rows = timetable.row_labels or numbered
    labels = [timetable.column_unit, *rows]
    side = max(map(len, labels))
    table = [[label.ljust(side) for label in labels], *_fit(timetable, width - side)]
    return [GAP.join(cells).rstrip() for cells in zip(*table, strict=True)]


def _render_column(timetable: Timetable, time: int) -> list[str]:
    """One column as cells of equal width: the time, then a cell per row."""
    cells = [str(time), *(" ".join(map(str, row[time])) or IDLE_CELL for row in timetable.rows)]
    width = max(map(len, cells))
    return [cell.ljust(width) for cell in cells]


def _fit(timetable: Timetable, width: int) -> list[list[str]]:
    """All columns if they fit, otherwise as many from both ends as fit."""
    limit = max(2, width // (len(GAP) + 1))  # a column is at least one character wide
    for count in range(min(timetable.columns, limit), 2, -1):
        shown = _first_and_last(timetable, count)
        if sum(len(GAP) + len(column[0]) for column in shown) <= width:
            return shown
    return _first_and_last(timetable, min(timetable.columns, 2))


def _first_and_last(timetable: Timetable, count: int) -> list[list[str]]:
    """The first and last columns, `count` in total, with the number omitted in between."""
    end = timetable.columns
    head = [_render_column(timetable, time) for time in range((count + 1) // 2)]
    tail = [_render_column(timetable, time) for time in range(end - count // 2, end)]
    if count == end:
        return [*head, *tail]
    label = f"… {end - count} columns …"
    return [*head, [label, *("…".center(len(label)) for _ in timetable.rows)], *tail]


@dataclass(frozen=True)
class TimedAction:
    """An action of one stage and its timetable column."""

    stage: int
    action: Action
    column: int


def timed_actions(schedule: Schedule, stages: int, micro_batches: int) -> list[list[TimedAction]]:
    """The actions of each process in one update, with their columns."""
    orders = schedule.orders(stages, micro_batches)
    columns = schedule.columns(stages, micro_batches)
    return [
        [
            TimedAction(process if action.stage is None else action.stage, action, column)
            for action, column in zip(order, times, strict=True)
        ]
        for process, (order, times) in enumerate(zip(orders, columns, strict=True))
    ]


def prefetched_inputs(
    orders: Sequence[Sequence[TimedAction]], row: Sequence[TimedAction]
) -> list[bool]:
    """For each action of a row, whether the next action's input is received while it runs.

    It is if the sender runs in the same column or earlier. Other inputs are received when they are
    needed, since they would only occupy memory before.
    """
    columns = {
        (timed.stage, timed.action.symbol, timed.action.micro): timed.column
        for order in orders
        for timed in order
    }
    prefetched = []
    for current, following in pairwise(row):
        sender = dependency(following.stage, following.action)
        is_received = sender[0] != following.stage and sender in columns
        prefetched.append(is_received and columns[sender] <= current.column)
    return [*prefetched, False]
