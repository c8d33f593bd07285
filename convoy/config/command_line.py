"""The words of a command line → settings, by the table of a dialect. argparse splits; unknown words
get near names.
"""

import argparse
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from convoy.config.flags import (
    TARGET,
    Dialect,
    Flag,
    Given,
    MappedWord,
    OtherDialects,
    Translation,
    no_other_dialects,
    put_together,
)
from convoy.config.option import Option, WrongType, as_words, spelled
from convoy.config.schema import SECTIONS, option_table
from convoy.config.settings import COMMAND_LINE, Dropped, Problem, Setting, beyond_limits
from convoy.errors import ConfigError
from convoy.registry import near_names
from convoy.text import printable, shown


class Parser(argparse.ArgumentParser):
    """argparse without its exit: a wrong word becomes a ConfigError."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")

    def _get_option_tuples(self, _: str) -> list[Any]:
        """Nothing is guessed: prefixes are whole by now, and `-hosts` is no `-h`."""
        return []


@dataclass(frozen=True)
class _Typed:
    """What argparse keeps for one flag: the spelling as typed and the words behind it."""

    flag: Flag
    words: list[str]

    @property
    def text(self) -> str:
        words = [] if self.flag.means is not None else [word for word in self.words if word]
        return " ".join([self.flag.spelling, *words])


class _Keep(argparse.Action):
    """Collects in order, so that the last spelling of an option wins."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        del parser, option_string
        words = values if isinstance(values, list) else [values]
        namespace.typed = [*namespace.typed, _Typed(self.const, words)]


def flag_of(action: argparse.Action | None) -> Flag | None:
    """The row of the dialect behind an argument; None for one of the verb's own."""
    return action.const if isinstance(action, _Keep) else None


def add_flags(parser: argparse.ArgumentParser, dialect: Dialect) -> None:
    """Give a parser every spelling of the dialect, grouped by section."""
    parser.set_defaults(typed=[])
    groups = {
        name: parser.add_argument_group((section.__doc__ or "").split(".")[0].lower())
        for name, section in SECTIONS.items()
    }
    parts = parser.add_argument_group("parts of a value")
    shown: set[tuple[str, Any]] = set()
    usual = dialect.defaults({})
    offs = {flag.to: flag.spelling for flag in reversed(dialect.flags) if flag.means is False}
    for flag in dialect.flags:
        # `--no-x` is told beside `--x`, and an older spelling not at all.
        effect = (flag.to, "switch" if isinstance(flag.means, bool) else flag.means)
        group = groups[flag.option.section] if flag.option else parts
        group.add_argument(
            flag.spelling,
            dest=f"_{flag.spelling}",
            action=_Keep,
            const=flag,
            nargs="*" if flag.many else None,
            metavar=_metavar(flag),
            help=_help(flag, dialect, usual, offs)
            if effect not in shown and not _is_quiet(flag)
            else argparse.SUPPRESS,
        )
        shown.add(effect)


@dataclass(frozen=True)
class ParsedFlags:
    """What came of words: settings, everything wrong with them, and what was left out."""

    given: Given
    problems: list[Problem]
    dropped: list[Dropped]
    mapped: list[MappedWord] = field(default_factory=list)
    target: str | None = None


def read_flags(
    typed: list[_Typed], dialect: Dialect, under: Given | None = None, above: Given | None = None
) -> ParsedFlags:
    """The settings that were typed, put together by the combiners of the dialect: over those of a
    named configuration, under those of a launcher."""
    above = above or {}
    translation = Translation({}, under or {}, launched=frozenset(above))
    for one in typed:
        try:
            value = one.flag.value(one.words)
        except WrongType as wrong:
            translation.refuse(one.flag.spelling, str(wrong))
            continue
        if one.flag.why:
            translation.drop(one.text, one.flag.why)
        else:
            translation.given.pop(one.flag.to, None)  # the last one said stands last
            translation.given[one.flag.to] = Setting(value, one.text)
    for name, decided in above.items():
        typed_one = translation.given.get(name, decided)
        if typed_one.value != decided.value:
            translation.drop(typed_one.source, f"{decided.source} says {decided.value}")
    translation.given.update(above)
    words = {one.source for one in translation.given.values()}
    words -= {one.source for one in above.values()}
    settings = put_together(translation, dialect.combiners)
    target = translation.given.get(TARGET)
    spelling = {name: option_table()[name].flag for name in settings}
    spelling |= {one.flag.to: one.flag.spelling for one in typed}
    return ParsedFlags(
        {
            name: Setting(one.value, COMMAND_LINE) if one.source in words else one
            for name, one in settings.items()
        },
        # Such a value stays in place, so that no rule speaks of a default instead of it.
        [*translation.problems, *beyond_limits(settings, lambda name, _: spelling[name])],
        translation.dropped,
        _credited(settings, translation.mapped, words),
        str(target.value) if target else None,
    )


def _credited(settings: Given, mapped: list[MappedWord], words: set[str]) -> list[MappedWord]:
    """What came of each word, in canonical flags where it set any."""
    direct = [MappedWord(one.source, name) for name, one in settings.items()]
    found: dict[tuple[str, str], MappedWord] = {}
    for one in (*mapped, *direct):
        if one.word in words and (one.to in settings or one.to not in option_table()):
            text = one.to
            if one.to in settings:  # as `--micro-batch-size 8`
                text = " ".join(as_flags(option_table()[one.to], settings[one.to].value))
            if text:  # there are no words for what is unset
                found.setdefault((one.word, text), MappedWord(one.word, text))
    return list(found.values())


def as_flags(row: Option, value: Any) -> list[str]:
    """A value of an option as words of a canonical command line; unset has none."""
    if value is None:
        return []
    if row.kind.base is bool:
        return [row.flag if value else "--no-" + row.flag.removeprefix("--")]
    words = as_words(value)
    if row.kind.base is str and any(word.startswith("-") for word in words):
        # Behind a space it would be taken for a flag, as no number is.
        return [f"{row.flag}={','.join(words)}"]
    return [row.flag, *words]


def _metavar(flag: Flag) -> str:
    if flag.means is not None:
        return ""
    if flag.option is None:
        return "TEXT"
    if choices := flag.option.declared.limit.choices:
        return "|".join(choices)
    return {int: "N", float: "X", str: "TEXT", bool: "true|false"}[flag.option.kind.base]


def _help(flag: Flag, dialect: Dialect, usual: Mapping[str, Any], offs: Mapping[str, str]) -> str:
    """What it does, its default there, and the first spelling that switches it off."""
    if flag.option is None:
        return dialect.says.get(flag.spelling) or flag.why or f"see {flag.to.replace('_', ' ')}"
    default = usual.get(flag.to, flag.option.default)
    notes = [] if default in (None, ()) else [spelled(default)]
    if flag.means is True and flag.to in offs:
        notes.append(offs[flag.to])
    shown = f" [{'; '.join(notes)}]" if notes else ""
    return (flag.option.declared.help + shown).replace("%", "%%")


def _is_quiet(flag: Flag) -> bool:
    """A new user meets only what does something; `convoy options` lists the rest too."""
    return flag.older or (flag.option is not None and not flag.option.does_something)


_MOST_LISTED = 8  # spellings that a prefix could mean
# No prefix stands for these: `--gradient-acc` is older than the other option it could be.
_IN_FULL = ("--gradient-accumulation-dtype",)


def spell_out(words: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Attach every value to its whole spelling, so that argparse has nothing to guess.

    `--gradient-a 2` → `--gradient-accumulation=2`, `--augment` → `--augment=true`, `--lr` with no
    value behind it → `--lr=`. An ambiguous prefix stays as it is and is found unknown.
    """
    attached: list[str] = []
    rest = deque(words)
    while rest and rest[0] != "--":
        name, equals, value = rest.popleft().partition("=")
        action = _action(name, parser)
        if action is not None:
            name = next(one for one in action.option_strings if one.startswith(name))
        flag = flag_of(action)
        if flag is not None and not equals and not flag.many:
            equals, value = "=", _value_behind(flag, rest)
        if action is not None and value == "--":  # argparse would drop it, and leave no value
            value = "--," if flag is not None and flag.many else ""
        attached.append(name + equals + value)
    return [*attached, *rest]


def unknown_words(
    extra: list[str], parser: argparse.ArgumentParser, elsewhere: OtherDialects = no_other_dialects
) -> list[Problem]:
    """A problem for each flag or word that no table knows, or only that of another dialect."""
    problems: list[Problem] = []
    is_value = False  # of the unknown flag before it
    for word in extra:
        if _is_flag(word):
            problems.append(_unknown_flag(word.partition("=")[0], parser, elsewhere))
            is_value = "=" not in word
        elif not is_value:
            problems.append(Problem("", f"unexpected word {shown(word)}"))
    return problems


def _action(name: str, parser: argparse.ArgumentParser) -> argparse.Action | None:
    """What a spelling stands for, or a prefix of spellings that all mean one thing."""
    known = parser._option_string_actions
    if not name.startswith("--") or name in known:
        return known.get(name)
    spellings = [one for one in known if one.startswith(name) and one not in _IN_FULL]
    fits = [known[one] for one in spellings]
    return fits[0] if len({_meaning(action) for action in fits}) == 1 else None


def _meaning(action: argparse.Action) -> object:
    flag = flag_of(action)
    return (flag.to, flag.read, flag.means) if flag else action.dest


def _value_behind(flag: Flag, rest: deque[str]) -> str:
    if flag.means is not None:
        return "true"
    return rest.popleft() if rest and not _is_flag(rest[0]) else ""


def _is_flag(word: str) -> bool:
    """A dash begins a flag, unless it begins a negative number or stands alone."""
    if not word.startswith("-") or word == "-":
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _unknown_flag(flag: str, parser: argparse.ArgumentParser, elsewhere: OtherDialects) -> Problem:
    known = parser._option_string_actions
    other = elsewhere(flag)
    fits = [spelling for spelling in known if spelling.startswith(flag)]
    if flag.startswith("--") and fits:
        listed = ", ".join(fits[:_MOST_LISTED]) + (", …" if len(fits) > _MOST_LISTED else "")
        whole = f"; {flag} itself {other}" if other else ""
        return Problem("", f"option {flag} is ambiguous: it could be {listed}{whole}")
    if other is not None:
        return Problem(flag, other)
    near = near_names(flag, known)
    way_out = f"did you mean {', '.join(near)}?" if near else f"see `{parser.prog} --help`"
    return Problem("", f"unknown option {printable(flag)}; {way_out}")
