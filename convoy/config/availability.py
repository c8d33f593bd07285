"""What this version cannot carry out yet. A plan may speak of it; a run must refuse it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convoy.config.effects import COMMAND_LINE
from convoy.config.fields import Option
from convoy.config.layers import Setting
from convoy.config.problems import Problem, refuse
from convoy.config.resolve import Resolved
from convoy.config.rules import files_have_a_folder
from convoy.config.schema import option_table
from convoy.config.values import spelled

_SHIPPED = re.compile(r"config (\S+), line \d+")  # how the source of a value we ship is called


@dataclass(frozen=True)
class Unavailable:
    """A value of an option whose machinery is not built."""

    option: str
    value: Any
    source: str
    way_out: str

    @property
    def reason(self) -> str:
        """The whole sentence."""
        return str(self.problem)

    @property
    def problem(self) -> Problem:
        typed = f"{option_table()[self.option].flag} {spelled(self.value)}"
        by = "" if self.source == COMMAND_LINE else f" ({self.source})"
        return Problem(typed, f"is not available in this version{by}; {self.way_out}")


def unavailable(settings: Mapping[str, Setting]) -> list[Unavailable]:
    """Every value that a run could not honor, in the order of the option table."""
    return [
        Unavailable(name, one.value, one.source, _way_out(option_table()[name], one.source))
        for name, one in settings.items()
        if not option_table()[name].is_ready(one.value)
    ]


def refuse_unready(resolved: Resolved) -> None:
    """Never pretend: what cannot be carried out ends before anything begins.

    A plan needs no files; a run does.
    """
    missing = unavailable(resolved.settings)
    refuse([*(one.problem for one in missing), *files_have_a_folder(resolved.config)])


def refuse_unready_data(resolved: Resolved) -> None:
    """The same for a verb that needs nothing but images."""
    of_data = ("data", "mixing", "device")
    missing = [
        one
        for one in unavailable(resolved.settings)
        if option_table()[one.option].section in of_data
    ]
    refuse([*(one.problem for one in missing), *files_have_a_folder(resolved.config)])


def _way_out(row: Option, source: str) -> str:
    usable = [one for one in row.declared.ready or () if one not in (None, ())]
    if row.kind.base is bool and len(usable) == 1 and not row.kind.many:
        return f"use {row.flag}" if usable[0] else f"use --no-{row.flag.removeprefix('--')}"
    if usable:
        return f"use {row.flag} {' or '.join(spelled(one) for one in usable)}"
    if row.kind.many and source != COMMAND_LINE:
        return f"use {row.flag} without a value"
    shipped = _SHIPPED.match(source)
    copy = f" of a copy, made by `convoy configs {shipped[1]} > FILE`" if shipped else ""
    return f"leave it out{copy}"
