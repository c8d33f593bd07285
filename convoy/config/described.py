"""What there is to tell of an option beside its help: its words, where it works, what is missing.

The pages, `convoy options`, the schema for editors and the completion of shells tell the same.
"""

from typing import Any

from convoy.config.catalog import MODELS
from convoy.config.fields import Option, Reach
from convoy.config.schema import option_table
from convoy.config.values import spelled

# A column has little room; a reader of programs gets the whole words.
WHERE = {Reach.HERE: "here", Reach.CUDA: "CUDA", Reach.NOWHERE: "nowhere"}


def choices(row: Option) -> tuple[str, ...]:
    """The closed list of words that an option takes; empty if it takes others."""
    return tuple(MODELS) if row.name == "model" else row.declared.limit.choices


def not_available(row: Option) -> list[Any] | bool | None:
    """The choices that this version cannot carry out; True: all values but the `ready` ones."""
    words = (True, False) if row.kind.base is bool else choices(row)
    if row.kind.many or not words:
        return row.pending or None
    return [one for one in words if not row.is_ready(one)] or None


def availability_as_text(row: Option) -> str:
    """A sentence on what is missing, empty if nothing is."""
    missing = not_available(row)
    if missing is None:
        return ""
    if isinstance(missing, list):
        return f"Not available in this version: {', '.join(map(spelled, missing))}."
    usable = [_worded(one) for one in row.declared.ready or ()]
    return f"In this version only: {', '.join(usable)}."


def reach_as_text(row: Option) -> str:
    """A sentence on where it works and what it does there, empty if it works here."""
    why = row.declared.why.rstrip(".")
    if row.declared.reach is Reach.CUDA:
        return f"On CUDA only: {why}."
    return f"No counterpart: {why}." if row.declared.reach is Reach.NOWHERE else ""


def meaning(row: Option) -> str:
    """Its help, and what restricts it."""
    parts = [row.declared.help, reach_as_text(row), availability_as_text(row)]
    return " ".join(part for part in parts if part)


def summary() -> str:
    """How many options there are of each kind."""
    rows = option_table().values()
    here, cuda, nowhere = (
        sum(row.declared.reach is reach for row in rows)
        for reach in (Reach.HERE, Reach.CUDA, Reach.NOWHERE)
    )
    gaps = sum(not_available(row) is not None for row in rows)
    return (
        f"{len(rows)} options: {here} work here, {cuda} on CUDA only, {nowhere} without a "
        f"counterpart; {gaps} with values that are not available in this version"
    )


def _worded(value: Any) -> str:
    return "unset" if value in (None, ()) else spelled(value)
