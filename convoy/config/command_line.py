"""Words of a command line → settings, by the table of a dialect. argparse does the splitting."""

import argparse
from collections import deque
from dataclasses import dataclass
from typing import Any, NoReturn

from convoy.config.dialects.dialect import Dialect, Flag, Given
from convoy.config.layers import Setting
from convoy.config.problems import Problem
from convoy.config.schema import SECTIONS, option_table
from convoy.config.values import WrongType, spelled
from convoy.config.yaml_limits import shown
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
    shown_in_help: set[str] = set()
    for flag in dialect.flags:
        first = flag.to not in shown_in_help
        shown_in_help.add(flag.to)
        group = groups[flag.option.section] if flag.option else parser
        group.add_argument(
            flag.spelling,
            dest=f"_{flag.spelling}",
            action=_Keep,
            const=flag,
            nargs="*" if flag.many else None,
            metavar=_metavar(flag),
            help=_help(flag, dialect) if first else argparse.SUPPRESS,
        )


def spell_out(words: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Whole spellings with their values attached, so that argparse has nothing to guess.

    `--grad 2` → `--gradient-accumulation=2`, `--augment` → `--augment=true`, `--lr` with no value
    behind it → `--lr=`. An ambiguous prefix stays as it is and is found unknown.
    """
    attached: list[str] = []
    rest = deque(words)
    while rest and rest[0] != "--":
        name, equals, value = rest.popleft().partition("=")
        action = _action(name, parser)
        flag = action.const if isinstance(action, _Keep) else None
        if action is not None:
            name = next(one for one in action.option_strings if one.startswith(name))
        if flag is not None and not equals and not flag.many:
            equals, value = "=", _value_behind(flag, rest)
        attached.append(name + equals + value)
    return [*attached, *rest]


def _action(name: str, parser: argparse.ArgumentParser) -> argparse.Action | None:
    """What a spelling, or a prefix that only one meaning has, stands for."""
    known = parser._option_string_actions
    if not name.startswith("--") or name in known:
        return known.get(name)
    fits = [action for spelling, action in known.items() if spelling.startswith(name)]
    return fits[0] if len({_meaning(action) for action in fits}) == 1 else None


def _meaning(action: argparse.Action) -> object:
    """Two spellings of one option are no ambiguity."""
    flag = action.const if isinstance(action, _Keep) else None
    return (flag.to, flag.read, flag.means) if flag else action.dest


def _value_behind(flag: Flag, rest: deque[str]) -> str:
    if flag.means is not None:
        return "true"
    return rest.popleft() if rest and not _is_flag(rest[0]) else ""


def _is_flag(word: str) -> bool:
    """A dash begins a flag, unless it begins a negative number."""
    if not word.startswith("-") or word == "-":
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def read_flags(typed: list[_Typed], dialect: Dialect) -> tuple[Given, list[Problem]]:
    """The settings that were typed, and everything wrong with them."""
    given: Given = {}
    spelling: dict[str, str] = {}
    problems: list[Problem] = []
    for one in typed:
        spelling[one.flag.to] = one.flag.spelling
        try:
            given[one.flag.to] = Setting(one.flag.value(one.words), SOURCE)
        except WrongType as wrong:
            problems.append(Problem(one.flag.spelling, str(wrong)))
    for join in dialect.joins:
        try:
            given = join(given)
        except WrongType as wrong:
            problems.append(Problem("", str(wrong)))
    given = {name: one for name, one in given.items() if name in option_table()}
    for name, setting in given.items():
        row = option_table()[name]
        if (text := row.problem(setting.value)) is not None:
            problems.append(Problem(spelling.get(name, row.flag), text))
    return given, problems


def unknown_words(extra: list[str], parser: argparse.ArgumentParser) -> list[Problem]:
    """A problem for each flag or word that no table knows."""
    problems: list[Problem] = []
    is_value = False  # of the unknown flag before it
    for word in extra:
        if _is_flag(word):
            problems.append(_unknown_flag(word.partition("=")[0], parser))
            is_value = "=" not in word
        elif not is_value:
            problems.append(Problem("", f"unexpected word {shown(word)}"))
    return problems


def _unknown_flag(flag: str, parser: argparse.ArgumentParser) -> Problem:
    known = parser._option_string_actions
    fits = [spelling for spelling in known if spelling.startswith(flag)]
    if fits and flag.startswith("--"):
        return Problem("", f"option {flag} is ambiguous: it could be {', '.join(fits)}")
    return Problem("", f"unknown option {shown(flag)[1:-1]}; {suggest(flag, known)}")


def _title(section: type) -> str:
    return (section.__doc__ or "").split(".")[0].lower()


def _metavar(flag: Flag) -> str:
    if flag.means is not None or flag.option is None:
        return "" if flag.means is not None else "TEXT"
    if choices := flag.option.declared.limit.choices:
        return "|".join(choices)
    return {int: "N", float: "X", str: "TEXT", bool: "B"}[flag.option.kind.base]


def _help(flag: Flag, dialect: Dialect) -> str:
    if flag.option is None:
        return ""
    default = dialect.defaults.get(flag.to, flag.option.default)
    shown_default = "" if default in (None, ()) else f" [{spelled(default)}]"
    return (flag.option.declared.help + shown_default).replace("%", "%%")
