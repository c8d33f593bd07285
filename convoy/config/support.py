"""Options that have no effect in a configuration, and values that this version cannot carry out.

Nothing that was asked for is ignored silently: a plan shows both, a run reports the options without
effect and refuses the values that are not available. Help and docs say the same of each option, and
so does the JSON Schema of the whole table.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convoy.config.catalog import DATA, MODELS
from convoy.config.command_line import as_flags
from convoy.config.option import Option, Support, spelled
from convoy.config.resolve import Resolved, data_dir_is_given
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
    found = []
    for name, row in option_table().items():
        if name in settings and _is_given(settings[name], usual[name]):
            reasons = [condition(run) for condition in row.declared.idle]
            why = next(filter(None, [*reasons, row.unsupported(run.device.device)]), None)
            found += [InactiveOption(name, why)] if why else []
    return found


def typed(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those of the command line alone: of a resumed run, what its first part has not reported."""
    return {name: one for name, one in settings.items() if one.source == COMMAND_LINE}


def _is_given(setting: Setting, usual: Any) -> bool:
    """Whether a person asked for it here. Switching off a thing that is not there is fine.

    A file may be one that the program wrote, with every value: what is usual was not chosen there.
    An environment variable holds for many runs, and nobody asks for a dialect's own defaults.
    """
    if setting.value in (None, ()) or setting.value is False:
        return False
    chosen_in_file = _FILE.search(setting.source) is not None and setting.value != usual
    return setting.source == COMMAND_LINE or chosen_in_file


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
    if row.kind.base is bool and len(usable) == 1:
        return f"use {' '.join(as_flags(row, usable[0]))}"
    if usable:
        return f"use {row.flag} {' or '.join(spelled(one) for one in usable)}"
    if row.kind.many and source != COMMAND_LINE:
        return f"use {row.flag} without a value"
    shipped = _SHIPPED.match(source)
    copy = f" of a copy, made by `convoy configs {shipped[1]} > FILE`" if shipped else ""
    return f"leave it out{copy}"


# A column has little room; a reader of programs gets the whole words.
WHERE = {Support.HERE: "here", Support.CUDA: "CUDA", Support.NOWHERE: "nowhere"}


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
    if isinstance(missing, list):
        return f"Not available in this version: {', '.join(map(spelled, missing))}."
    ready = row.declared.ready or ()
    usable = ["unset" if value in (None, ()) else spelled(value) for value in ready]
    return f"In this version only: {', '.join(usable)}." if missing else ""


def support_as_text(row: Option) -> str:
    """A sentence on where it works and what it does there, empty if it works here."""
    why = row.declared.why.rstrip(".")
    if row.declared.support is Support.CUDA:
        return f"On CUDA only: {why}."
    return f"No counterpart: {why}." if row.declared.support is Support.NOWHERE else ""


def meaning(row: Option) -> str:
    """Its help, and what restricts it."""
    parts = [row.declared.help, support_as_text(row), availability_as_text(row)]
    return " ".join(part for part in parts if part)


def summary() -> str:
    """How many options there are of each kind."""
    rows = option_table().values()
    reach = Counter(row.declared.support for row in rows)
    gaps = sum(not_available(row) is not None for row in rows)
    return (
        f"{len(rows)} options: {reach[Support.HERE]} work here, {reach[Support.CUDA]} on CUDA "
        f"only, {reach[Support.NOWHERE]} without a counterpart; {gaps} with values that are not "
        "available in this version"
    )


Schema = dict[str, Any]

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_BOUNDS = {"at_least": "minimum", "above": "exclusiveMinimum", "at_most": "maximum"}
_ONE = {"$ref": "#/definitions/configuration"}


def json_schema() -> Schema:
    """Of a file with one configuration, or with several by name: then every value is a mapping.

    An empty file sets nothing. Editors resolve merge keys, other checkers see them.
    """
    merged = {"description": "Mappings to start from.", "anyOf": [_ONE, _list_of(_ONE)]}
    options = {name: _property(row) for name, row in option_table().items()}
    configuration = {
        "type": ["object", "null"],
        "properties": {**options, "<<": merged},
        "additionalProperties": False,
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration of convoy",
        "description": "One mapping of options, or several of them by name.",
        "if": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "object"}},
        "then": {"additionalProperties": _ONE},
        "else": _ONE,
        "definitions": {"configuration": configuration},
    }


def _property(row: Option) -> Schema:
    told = {"description": meaning(row), "default": row.default}
    if row.kind.many:
        item = _item(row, optional=False)
        return told | {"anyOf": [item, _list_of(item), {"type": "null"}]}
    return told | _item(row, row.kind.optional)


def _item(row: Option, optional: bool) -> Schema:
    """One value, or one item of a list."""
    unset: list[Any] = [None] if optional else []
    if words := choices(row):
        return {"enum": [*words, *unset]}
    kind = _TYPES[row.kind.base]
    limit = vars(row.declared.limit)
    bounds = {word: limit[name] for name, word in _BOUNDS.items() if limit[name] is not None}
    length = {"minLength": 1} if row.kind.base is str else {}
    return {"type": [kind, "null"] if optional else kind} | length | bounds


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "items": item}
