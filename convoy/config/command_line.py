"""Words of a command line → settings, by the table of a dialect. argparse does the splitting."""

import argparse
from dataclasses import dataclass
from typing import Any, NoReturn

from convoy.config.dialects.dialect import Dialect, Flag, Given
from convoy.config.layers import Setting
from convoy.config.problems import Problem
from convoy.config.schema import SECTIONS
from convoy.config.values import WrongType, as_words
from convoy.errors import ConfigError
from convoy.registry import suggest

SOURCE = "command line"


class Parser(argparse.ArgumentParser):
    """argparse without its exit: a wrong word becomes a ConfigError."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")


@dataclass(frozen=True)
class _Typed:
    """What argparse keeps for one flag: the spelling as typed and the words behind it."""

    flag: Flag
    words: list[str]


class _Keep(argparse.Action):
    """Collects in order, so that the last spelling of an option wins."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        del parser, option_string
        words = values if isinstance(values, list) else [values]
        namespace.typed = [*namespace.typed, _Typed(self.const, words)]


def add_flags(parser: argparse.ArgumentParser, dialect: Dialect) -> None:
    """Give a parser every spelling of the dialect, grouped by section."""
    parser.set_defaults(typed=[])
    groups = {
        name: parser.add_argument_group(_title(section)) for name, section in SECTIONS.items()
    }
    shown: set[tuple[str, Any]] = set()
    for flag in dialect.flags:
        row = flag.option
        first = (row.name, flag.means) not in shown and flag.means is not False
        shown.add((row.name, flag.means))
        groups[row.section].add_argument(
            flag.spelling,
            dest=f"_{flag.spelling}",
            action=_Keep,
            const=flag,
            nargs=0 if flag.means is not None else ("*" if row.kind.many else None),
            metavar=_metavar(flag),
            help=_help(flag) if first else argparse.SUPPRESS,
        )


def split_switches(words: list[str], dialect: Dialect) -> list[str]:
    """`--augment=false` becomes `--no-augment`: argparse's switches take no value."""
    switches = {flag.spelling: flag for flag in dialect.flags if isinstance(flag.means, bool)}
    opposites = {(flag.to, flag.means): flag.spelling for flag in reversed(dialect.flags)}
    return [_split_switch(word, switches, opposites) for word in words]


def _split_switch(
    word: str, switches: dict[str, Flag], opposites: dict[tuple[str, Any], str]
) -> str:
    name, equals, value = word.partition("=")
    if not equals or name not in switches or value.lower() not in ("true", "false"):
        return word
    flag = switches[name]
    return opposites[flag.to, flag.means if value.lower() == "true" else not flag.means]


def read_flags(typed: list[_Typed], dialect: Dialect) -> tuple[Given, list[Problem]]:
    """The settings that were typed, and everything wrong with them."""
    given: Given = {}
    problems: list[Problem] = []
    for one in typed:
        try:
            value = one.flag.value(one.words)
        except WrongType as wrong:
            problems.append(Problem(one.flag.spelling, str(wrong)))
            continue
        if (text := one.flag.option.problem(value)) is not None:
            problems.append(Problem(one.flag.spelling, text))
            continue
        given[one.flag.to] = Setting(value, SOURCE)
    for join in dialect.joins:
        given = join(given)
    return given, problems


def unknown_words(extra: list[str], parser: argparse.ArgumentParser) -> list[Problem]:
    """A problem for each flag or word that no table knows."""
    known = [spelling for action in parser._actions for spelling in action.option_strings]
    flags = [word.partition("=")[0] for word in extra if word.startswith("--")]
    if not flags:
        return [Problem("", f"unexpected word {word!r}") for word in extra]
    return [Problem("", f"unknown option {flag}; {suggest(flag, known)}") for flag in flags]


def _title(section: type) -> str:
    return (section.__doc__ or "").split(".")[0].lower()


def _metavar(flag: Flag) -> str | None:
    if flag.means is not None:
        return None
    kind = flag.option.kind
    if choices := flag.option.declared.limit.choices:
        return "|".join(choices)
    return {int: "N", float: "X", str: "TEXT", bool: "B"}[kind.base]


def _help(flag: Flag) -> str:
    default = flag.option.default
    shown = "" if default in (None, ()) else f" [{' '.join(as_words(default))}]"
    return (flag.option.declared.help + shown).replace("%", "%%")
