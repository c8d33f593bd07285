"""Verbs, their options and positional arguments, for shell completion.

Everything is read from the argument parsers of the verbs.
"""

from argparse import SUPPRESS, Action
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

from convoy.cli import data
from convoy.cli.main import VERBS, call_verb
from convoy.config.command_line import ConfigArgumentParser, flag_of
from convoy.config.flags import Flag
from convoy.config.named_configs import shipped_config_names
from convoy.config.option_docs import choices
from convoy.config.schema import option_table
from convoy.config.sections.network import MODELS

FILES, DIRECTORIES = "/files", "/directories"  # no offered word starts with a slash

# Values that are not in the parsers, by verb and argument.
_NAMES = {
    ("configs", "name"): shipped_config_names(),
    ("models", "name"): list(MODELS),
    ("options", "words"): list(option_table()),
    ("launch", "script"): [FILES],
}


@dataclass(frozen=True)
class Value:
    """The values of an option or argument: their number, and which ones are offered."""

    takes: str = "one"  # none, one, many
    offered: tuple[str, ...] = ()  # words, or a single FILES or DIRECTORIES


@dataclass(frozen=True)
class Spelling:
    """A spelling of an option; a deprecated one is an alias of another."""

    text: str
    description: str
    value: Value
    alias_of: str | None = None


@dataclass(frozen=True)
class VerbCompletion:
    """A verb with its options and positional arguments; `data convert` is a verb of two words."""

    name: str
    description: str
    options: tuple[Spelling, ...]  # without the options of a run
    positionals: tuple[Value, ...]
    takes_run_options: bool


@cache
def all_verbs() -> tuple[VerbCompletion, ...]:
    """All verbs, each followed by its actions."""
    return tuple(
        _verb(name, description)
        for verb in VERBS.items()
        for name, description in (verb, *_actions(verb[0]))
    )


def _actions(verb: str) -> list[tuple[str, str]]:
    if verb != "data":
        return []
    return [(f"data {name}", description) for name, (_, description) in data.ACTIONS.items()]


@cache
def run_options() -> tuple[Spelling, ...]:
    """The options of a run, which several verbs share, in the order of the table."""
    actions = parser_of("train")._actions
    flags = [flag for action in actions if (flag := flag_of(action)) and not flag.deprecated]
    return tuple(_run_option(flag) for flag in flags)


class _ParserFound(Exception):
    """Carries a parser out of the function that creates it."""

    def __init__(self, parser: ConfigArgumentParser) -> None:
        super().__init__(parser)
        self.parser = parser


def parser_of(verb: str) -> ConfigArgumentParser:
    """The parser of a verb, or of an action of `data`."""

    def stop(parser: ConfigArgumentParser, *arguments: Any) -> None:
        del arguments
        raise _ParserFound(parser)

    name, _, action = verb.partition(" ")
    with patch.object(ConfigArgumentParser, "parse_known_args", stop):
        try:
            data.ACTIONS[action][0](["--help"]) if action else call_verb(name, ["--help"])
        except _ParserFound as found:
            return found.parser
    raise AssertionError(f"convoy {verb} --help uses no parser")


def _verb(name: str, description: str) -> VerbCompletion:
    actions = parser_of(name)._actions
    options = [
        action
        for action in actions
        if action.option_strings and action.help is not SUPPRESS and not flag_of(action)
    ]
    positionals = [action for action in actions if not action.option_strings]
    return VerbCompletion(
        name,
        description,
        tuple(
            Spelling(action.option_strings[-1], _description(action), _value(name, action))
            for action in options
        ),
        tuple(_value(name, action) for action in positionals),
        takes_run_options=any(flag_of(action) for action in actions),
    )


def _description(action: Action) -> str:
    return "" if action.help in (None, SUPPRESS) else str(action.help).replace("%%", "%")


def _value(verb: str, action: Action) -> Value:
    if action.nargs == 0:
        return Value("none")
    takes = "many" if action.nargs in ("*", "+") else "one"
    return Value(takes, tuple(_offered(verb, action)))


def _offered(verb: str, action: Action) -> list[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if (verb, action.dest) in _NAMES:
        return _NAMES[verb, action.dest]
    if action.dest == "config":
        return shipped_config_names()
    metavar = str(action.metavar)
    if metavar.startswith(("DIR", "RUN")):
        return [DIRECTORIES]
    return [FILES] if metavar.startswith("FILE") else []


def _run_option(flag: Flag) -> Spelling:
    row = flag.option
    assert row is not None, "flags without an option are deprecated"
    main = row.shown_flag
    if flag.const is False:
        main = "--no-" + row.flag.removeprefix("--")
    value = Value("none")
    if flag.const is None:
        offered = choices(row)
        if row.metavar == "DIR":
            offered = (DIRECTORIES,)
        elif row.metavar == "WEIGHTS" or row.name.endswith(("_path", "_file")):
            offered = (FILES,)
        value = Value("many" if flag.takes_list else "one", offered)
    return Spelling(flag.spelling, row.help, value, None if flag.spelling == main else main)
