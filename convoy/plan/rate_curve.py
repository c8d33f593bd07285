"""The learning rate over a run, drawn for people: bars of eighths in a few lines, and a table."""

from collections.abc import Iterator
from math import ceil

from convoy.plan.loop import LoopPlan
from convoy.plan.rate_changes import ShownChanges, shown_changes

_BLOCKS = " ▁▂▃▄▅▆▇█"
_HEIGHT = 4  # lines
_COLUMNS = 64  # at most
_FEWEST = 8  # however narrow the terminal


def rate_as_text(loop: LoopPlan, width: int) -> list[str]:
    """The curve and the table; nothing of a rate that never changes."""
    changes = shown_changes(loop)
    if len(changes.rows) == 1:
        return []
    return [*_curve(loop, width), "", *_table(changes)]


def _curve(loop: LoopPlan, width: int) -> Iterator[str]:
    """
    0.1 │███▇▇▆▆▅▄▃▂▁
        │████████████▇▆▅▄▃▂▁
      0 └────────────────────
        epoch 0            5
    """
    rates, last = loop.learning_rate, loop.updates - 1
    highest = rates.highest
    labels = [f"{highest:.4g}", *[""] * (_HEIGHT - 1), "0"]
    side = max(map(len, labels))
    columns = max(_FEWEST, min(_COLUMNS, width - side - 2))
    seen = [rates.rate(last * column // (columns - 1)) for column in range(columns)]
    eighths = [ceil(8 * _HEIGHT * rate / highest) for rate in seen]
    for line, label in enumerate(labels[:-1]):
        below = 8 * (_HEIGHT - 1 - line)
        bars = "".join(_BLOCKS[min(max(level - below, 0), 8)] for level in eighths)
        yield f"{label:>{side}} │{bars}".rstrip()
    yield f"{labels[-1]:>{side}} └{'─' * columns}"
    start, end = (f"{loop.epoch_after(update):.6g}" for update in (0, loop.updates))
    yield f"{'':{side}}  {f'epoch {start}':<{columns - len(end)}}{end}"


def _table(changes: ShownChanges) -> Iterator[str]:
    rows = [(f"{one.update}", f"{one.epoch:.6g}", f"{one.rate:.4g}") for one in changes.rows]
    if changes.left_out:
        rows.insert(-1, ("…", f"{changes.left_out} more", "…"))
    rows.insert(0, ("update", "epoch", "rate"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
