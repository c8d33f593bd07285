"""The words of a command → its shape: variables, launchers, interpreter, program, its words.

Variables and launchers may stand in front in any order:
`A=1 gc-profile -d DIR -- poprun … python3 -u train.py --config NAME`.
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from convoy.config.commands.launcher_tables import (
    LAUNCHERS,
    file_name,
    is_interpreter,
    is_variable,
    launcher,
)
from convoy.config.commands.launcher_words import own_words
from convoy.config.commands.launchers import Launcher
from convoy.config.commands.text import EXAMPLE, words_of
from convoy.config.user_text import printable, shown
from convoy.errors import ConfigError
from convoy.registry import near_names

# One-letter flags of Python alone, then perhaps one with a value: `-u`, `-W ignore`, `-um MODULE`.
_FLAGS = re.compile(r"-(?=.)([bBdEiIOPqRsStuvx]*)(?:([mWXc])(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A command line, taken apart; nothing in it has been given a meaning yet."""

    environment: Mapping[str, str]
    launchers: tuple[Launcher, ...]
    interpreter: tuple[str, ...]  # Python with its flags; empty for a program started directly
    program: str  # as typed: a path, or a module's dotted name
    words: tuple[str, ...]
    is_module: bool = False


def split(typed: Sequence[str], environment: Mapping[str, str]) -> Command:
    """Take apart what was typed; `environment` is where a quoted text finds its variables."""
    rest = deque(words_of(typed, environment))
    variables: dict[str, str] = {}
    launchers: list[Launcher] = []
    while rest:
        word = rest.popleft()
        name, equals, value = word.partition("=")
        if equals and is_variable(name):
            variables[name] = value
        elif file_name(word) == "env":
            _refuse_options_of_env(rest)
        elif (table := launcher(word)) is not None:
            length = own_words(table, rest).length
            launchers.append(Launcher(file_name(word), tuple(_take(rest, length))))
        elif is_interpreter(word):
            flags, is_module = _flags(word, rest)
            program = rest.popleft()
            interpreter = (word, *flags)
            return Command(
                variables, tuple(launchers), interpreter, program, tuple(rest), is_module
            )
        elif word.endswith(".py"):
            return Command(variables, tuple(launchers), (), word, tuple(rest))
        elif word != "--":
            raise _unknown(word, rest)
    raise ConfigError(f"the command starts no program; name one, as in `{EXAMPLE}`")


def _take(rest: deque[str], count: int) -> list[str]:
    return [rest.popleft() for _ in range(count)]


def _flags(python: str, rest: deque[str]) -> tuple[list[str], bool]:
    """Flags between Python and its program, and whether the program is a module."""
    flags: list[str] = []
    while rest and (found := _FLAGS.fullmatch(rest[0])):
        alone, kind, value = found.groups()
        rest.popleft()
        if alone:
            flags.append(f"-{alone}")
        if kind == "c":
            raise ConfigError(f"{python} -c runs text; name a program instead, as in `{EXAMPLE}`")
        if kind:
            rest.extendleft([value] if value else [])  # `-mtrain` is `-m train`
            _refuse_missing(f"{python} -{kind}", rest)
        if kind == "m":
            return flags, True
        if kind:
            flags.append(f"-{kind} {rest.popleft()}")
    if rest and rest[0] == "--":
        rest.popleft()
    _refuse_missing(python, rest)
    return flags, False


def _refuse_missing(before: str, rest: deque[str]) -> None:
    if not rest:
        raise ConfigError(f"nothing follows {before}; name a program, as in `{EXAMPLE}`")
    if rest[0].startswith("-"):
        raise ConfigError(
            f"{before} is followed by {printable(rest[0])} where its program should be; "
            f"name it first, as in `{EXAMPLE}`"
        )


def _refuse_options_of_env(rest: deque[str]) -> None:
    if rest and rest[0].startswith("-") and rest[0] != "--":
        raise ConfigError(
            f"env {printable(rest[0])} is not understood; give env only variables, "
            "as in `env NAME=VALUE python3 train.py`"
        )


def _unknown(word: str, rest: deque[str]) -> ConfigError:
    """The first word that no command can begin with, and what to do about it."""
    name = file_name(word)
    if name == "sudo":
        return ConfigError("sudo has no place here: no command needs it; leave it out")
    if name == "convoy":
        itself = printable(" ".join(["convoy", *list(rest)[:1]]))
        return ConfigError(f"`{itself}` is convoy's own command; run it without `convoy run --`")
    if len(word.split()) > 1:
        return ConfigError(f"{shown(word)} is one word; quote the whole command or none of it")
    if word.startswith("-"):
        return ConfigError(
            f"the command begins with {printable(word)}; name a program first, as in `{EXAMPLE}`"
        )
    near = near_names(name, [*LAUNCHERS, "env", "python3", "train.py"], most=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return ConfigError(
        f"unknown program or launcher {shown(word)}; {hint}A command begins with python3, a "
        "program such as train.py, poprun, mpirun, gc-profile or NAME=VALUE"
    )
