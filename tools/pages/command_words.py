"""What can be typed after `convoy`: verbs, their options, and what may follow each.

Each verb is asked for its parser, so nothing is said twice.
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

FILES, DIRECTORIES = "/files", "/directories"  # no word of a list begins with a slash

# Names that no parser knows: verb and argument → what it can be.
_NAMES = {
    ("configs", "name"): shipped_config_names(),
    ("models", "name"): list(MODELS),
    ("options", "words"): list(option_table()),
}


@dataclass(frozen=True)
class Value:
    """What may follow: how many words, and which ones, as far as they are known."""

    takes: str = "one"  # none, one, many
    offered: tuple[str, ...] = ()  # words, or a single FILES or DIRECTORIES


@dataclass(frozen=True)
class Spelling:
    """A spelling of an option; an older one stands for another."""

    text: str
    says: str
    value: Value
    stands_for: str | None = None


@dataclass(frozen=True)
class VerbWords:
    """A verb, its own options, and what stands at each place without an option.

    An action of a verb is a verb of two words.
    """

    name: str
    says: str
    own: tuple[Spelling, ...]
    places: tuple[Value, ...]
    of_a_run: bool  # it takes the options of a run too


@cache
def all_verbs() -> tuple[VerbWords, ...]:
    """Every verb there is, each before its actions."""
    return tuple(
        _verb(name, says) for verb in VERBS.items() for name, says in (verb, *_actions(verb[0]))
    )


def _actions(verb: str) -> list[tuple[str, str]]:
    return [(f"{verb} {name}", says) for name, (_, says) in data.ACTIONS.items() if verb == "data"]


@cache
def run_options() -> tuple[Spelling, ...]:
    """The options that verbs of a run share, in the order of the table."""
    actions = parser_of("train")._actions
    flags = [flag for action in actions if (flag := flag_of(action)) and not flag.deprecated]
    return tuple(_run_option(flag) for flag in flags)


class _Caught(Exception):
    """A parser that is about to read its words."""

    def __init__(self, parser: ConfigArgumentParser) -> None:
        super().__init__(parser)
        self.parser = parser


def parser_of(verb: str) -> ConfigArgumentParser:
    """The parser of a verb, or of an action of one."""

    def catch(parser: ConfigArgumentParser, *words: Any) -> None:
        del words
        raise _Caught(parser)

    name, _, action = verb.partition(" ")
    with patch.object(ConfigArgumentParser, "parse_known_args", catch):
        try:
            data.ACTIONS[action][0](["--help"]) if action else call_verb(name, ["--help"])
        except _Caught as caught:
            return caught.parser
    raise AssertionError(f"convoy {verb} --help asks no parser")


def _verb(name: str, says: str) -> VerbWords:
    actions = parser_of(name)._actions
    own = [
        action
        for action in actions
        if action.option_strings and action.help is not SUPPRESS and not flag_of(action)
    ]
    places = [action for action in actions if not action.option_strings]
    return VerbWords(
        name,
        says,
        tuple(
            Spelling(action.option_strings[-1], _says(action), _value(name, action))
            for action in own
        ),
        tuple(_value(name, action) for action in places),
        of_a_run=any(flag_of(action) for action in actions),
    )


def _says(action: Action) -> str:
    return "" if action.help in (None, SUPPRESS) else str(action.help).replace("%%", "%")


def _value(verb: str, action: Action) -> Value:
    if action.nargs == 0:
        return Value("none")
    takes = "many" if action.nargs in ("*", "+") else "one"
    return Value(takes, tuple(_offered(verb, action)))


def _offered(verb: str, action: Action) -> list[str]:
    if action.choices is not None:
        return [str(one) for one in action.choices]
    if (verb, action.dest) in _NAMES:
        return _NAMES[verb, action.dest]
    if action.dest == "config":
        return shipped_config_names()
    place = str(action.metavar)
    if place.startswith(("DIR", "RUN")):
        return [DIRECTORIES]
    return [FILES] if place.startswith("FILE") else []


def _run_option(flag: Flag) -> Spelling:
    row = flag.option
    assert row is not None, "parts are older words"
    main = row.flag if flag.const is not False else "--no-" + row.flag.removeprefix("--")
    value = Value("none")
    if flag.const is None:
        offered = choices(row)
        if row.name.endswith("_dir"):
            offered = (DIRECTORIES,)
        elif row.name.endswith(("_path", "_file")):
            offered = (FILES,)
        value = Value("many" if flag.takes_list else "one", offered)
    return Spelling(flag.spelling, row.help, value, None if flag.spelling == main else main)
