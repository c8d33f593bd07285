"""The named configuration of a command: an entry of the user's file, or one that is shipped."""

from dataclasses import dataclass, field
from pathlib import Path

from convoy.config.commands.programs import Program, Purpose
from convoy.config.commands.split import Command
from convoy.config.dialects.dialect import Dialect
from convoy.config.dialects.speech import Given
from convoy.config.named import (
    INFERENCE,
    entry_names,
    granted,
    read_named,
    read_spoken,
    shipped,
    speaks_of,
)
from convoy.config.problems import Dropped, Problem
from convoy.errors import ConfigError
from convoy.registry import near_names

USUAL_FILE = "configs.yml"  # beside the program, in both applications that have one


@dataclass(frozen=True)
class NamedConfig:
    """A configuration that a command names: one of ours, or an entry of a file."""

    settings: Given
    problems: list[Problem]
    dropped: list[Dropped] = field(default_factory=list)
    shipped: str | None = None


def find_config(
    name: str | None, path: str | None, command: Command, program: Program, dialect: Dialect
) -> NamedConfig:
    """A file of the user's that knows the name wins over what is shipped."""
    if name is None and path is None:
        return NamedConfig({}, [])
    file = path or file_beside(command.program, name or "")
    if file is not None:
        return NamedConfig(*read_spoken(name, file, dialect))
    ours = [f"{INFERENCE}/{name}", name or ""]
    if program.purpose is not Purpose.INFER:
        ours.reverse()
    chosen = next((one for one in ours if one in shipped()), None)
    if chosen is None:
        return NamedConfig({}, _unknown_config(name or "", command.program))
    settings, problems = read_named(chosen, None)
    # What else is said may change what is taken for granted, so that is asked of the dialect.
    own = shipped()[chosen].parent.name == program.dialect
    unsaid = granted(chosen) if own else set()
    said = {option: one for option, one in settings.items() if option not in unsaid}
    return NamedConfig(said, problems, shipped=chosen)


def _unknown_config(name: str, program: str) -> list[Problem]:
    """Near names come from all places that could have defined it, if they can be read."""
    known, unreadable = [*shipped()], []
    for place in _usual_files(program):
        try:
            known += entry_names(place)
        except ConfigError as error:
            unreadable.append(Problem("", str(error)))
    near = near_names(name, known)
    hint = f"did you mean {', '.join(near)}?" if near else "`convoy configs` lists those shipped"
    text = f"{name!r} is not shipped, and no {USUAL_FILE} here defines it; {hint}"
    return [Problem("--config", text), *unreadable]


def file_beside(program: str, name: str) -> str | None:
    """The usual file, in the folder of the program or here, if it defines the name."""
    found = (place for place in _usual_files(program) if speaks_of(place, name))
    return next((str(place) for place in found), None)


def _usual_files(program: str) -> list[Path]:
    places = (Path(program).parent / USUAL_FILE, Path(USUAL_FILE))
    return [place for place in places if place.exists()]
