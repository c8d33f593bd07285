"""Options that have no effect in a configuration, and values that this version cannot carry out.

Nothing that was asked for is ignored silently: a plan shows both, a run reports the options without
effect and refuses the values that are not available.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convoy.config.catalog import DATA, MODELS
from convoy.config.option import Option, spelled
from convoy.config.resolve import Resolved
from convoy.config.rules import data_dir_is_given
from convoy.config.schema import RunConfig, option_table
from convoy.config.settings import COMMAND_LINE, Problem, Setting, refuse

_FILE = re.compile(r", line \d+$")  # how the source of a value in a file ends
_SHIPPED = re.compile(r"config (\S+), line \d+")  # the same of a configuration that we ship


@dataclass(frozen=True)
class InactiveOption:
    """An option that was given and has no effect."""

    option: str
    why: str

    @property
    def flag(self) -> str:
        return option_table()[self.option].flag

    @property
    def reason(self) -> str:
        """The whole sentence."""
        return f"{self.flag} has no effect {self.why}"


def inactive_options(run: RunConfig, settings: Mapping[str, Setting]) -> list[InactiveOption]:
    """Every option that was given and has no effect, in the order of the option table."""
    usual = {row.name: row.default for row in option_table().values()}
    usual |= MODELS[run.network.model].defaults | DATA[run.data.data].defaults
    return [
        InactiveOption(name, why)
        for name, row in option_table().items()
        if name in settings and _is_given(settings[name], usual[name])
        if (why := _why_inactive(run, row)) is not None
    ]


def typed(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those of the command line alone: of a resumed run, what its first part has not reported."""
    return {name: one for name, one in settings.items() if one.source == COMMAND_LINE}


def _why_inactive(run: RunConfig, row: Option) -> str | None:
    """The first condition that holds."""
    reasons = (condition(run) for condition in row.declared.idle)
    why = next((reason for reason in reasons if reason is not None), None)
    return why or row.unsupported(run.device.device)


def _is_given(setting: Setting, usual: Any) -> bool:
    """Whether a person asked for it here. Switching off a thing that is not there is fine.

    A file may be one that the program wrote, with every value: what is usual was not chosen there.
    An environment variable holds for many runs, and nobody asks for a dialect's own defaults.
    """
    if setting.value in (None, ()) or setting.value is False:
        return False
    if setting.source == COMMAND_LINE:
        return True
    return _FILE.search(setting.source) is not None and setting.value != usual


@dataclass(frozen=True)
class Unavailable:
    """A value of an option that this version cannot carry out."""

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


def refuse_unready(resolved: Resolved, sections: tuple[str, ...] = ()) -> None:
    """Refuse what cannot be carried out before anything begins; of these sections only, if named.

    A plan needs no files; a run does.
    """
    missing = [
        one.problem
        for one in unavailable(resolved.settings)
        if not sections or option_table()[one.option].section in sections
    ]
    refuse([*missing, *data_dir_is_given(resolved.config)])


def refuse_unready_data(resolved: Resolved) -> None:
    """The same for a verb that needs nothing but images."""
    refuse_unready(resolved, ("data", "mixing", "device"))


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
