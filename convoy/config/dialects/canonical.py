"""The canonical dialect: derived from the option table, so it says nothing twice."""

from collections.abc import Iterator
from functools import cache

from convoy.config.dialects.dialect import Dialect, Flag
from convoy.config.fields import Option
from convoy.config.schema import option_table


@cache
def canonical() -> Dialect:
    """Every option under its own name, `--no-…` for the boolean ones, and older spellings."""
    return Dialect("convoy", tuple(flag for row in option_table().values() for flag in _flags(row)))


def _flags(row: Option) -> Iterator[Flag]:
    for spelling in (row.flag, *row.declared.also):
        if row.kind.base is bool:
            yield Flag(spelling, row.name, means=True)
            yield Flag("--no-" + spelling.removeprefix("--"), row.name, means=False)
        else:
            yield Flag(spelling, row.name)
