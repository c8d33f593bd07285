"""Words of a command line → settings, by the table of a dialect. argparse does the splitting."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from convoy.config.dialects.dialect import Dialect, Flag
from convoy.config.dialects.speech import TARGET, Became, Given, Speech, put_together
from convoy.config.fields import Option
from convoy.config.layers import Setting
from convoy.config.problems import Dropped, Problem
from convoy.config.schema import SECTIONS, option_table
from convoy.config.values import WrongType, as_words, spelled
from convoy.errors import ConfigError

SOURCE = "command line"


class Parser(argparse.ArgumentParser):
    """argparse without its exit: a wrong word becomes a ConfigError."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Nothing is guessed: prefixes are whole by now, and `-hosts` is no `-h`."""
        del option_string
        return []


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


def flag_of(action: argparse.Action | None) -> Flag | None:
    """The row of the dialect behind an argument; None for one of the verb's own."""
    return action.const if isinstance(action, _Keep) else None


def add_flags(parser: argparse.ArgumentParser, dialect: Dialect) -> None:
    """Give a parser every spelling of the dialect, grouped by section."""
    parser.set_defaults(typed=[])
    groups = {
        name: parser.add_argument_group(_title(section)) for name, section in SECTIONS.items()
    }
    parts = parser.add_argument_group("parts of a value")
    shown: set[tuple[str, Any]] = set()
    told = _Told(dialect.says, dialect.defaults({}), _offs(dialect))
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
            help=argparse.SUPPRESS if effect in shown or _is_quiet(flag) else _help(flag, told),
        )
        shown.add(effect)


@dataclass(frozen=True)
class Read:
    """What came of words: settings, everything wrong with them, and what was left out."""

    given: Given
    problems: list[Problem]
    dropped: list[Dropped]
    became: list[Became] = field(default_factory=list)
    target: str | None = None


@dataclass(frozen=True)
class Around:
    """What else decides: a named configuration beneath the words, a launcher above them."""

    under: Mapping[str, Setting] = field(default_factory=dict)
    above: Mapping[str, Setting] = field(default_factory=dict)


def read_flags(typed: list[_Typed], dialect: Dialect, around: Around = Around()) -> Read:  # noqa: B008 - frozen
    """The settings that were typed, put together by the joins of the dialect."""
    speech = Speech({}, around.under, launched=frozenset(around.above))
    for one in typed:
        try:
            value = one.flag.value(one.words)
        except WrongType as wrong:
            speech.refuse(one.flag.spelling, str(wrong))
            continue
        if one.flag.why:
            speech.drop(_as_typed(one), one.flag.why)
        else:
            speech.said.pop(one.flag.to, None)  # the last one said stands last
            speech.said[one.flag.to] = Setting(value, _as_typed(one))
    for name, decided in around.above.items():
        if name in speech.said and speech.said[name].value != decided.value:
            speech.drop(speech.said[name].source, f"{decided.source} says {decided.value}")
    speech.said.update(around.above)
    words = {one.source for one in speech.said.values()} - {
        one.source for one in around.above.values()
    }
    settings = put_together(speech, dialect.joins, option_table())
    target = speech.said.get(TARGET)
    return Read(
        {name: _from_words(one, words) for name, one in settings.items()},
        [*speech.problems, *_beyond_limits(settings, typed)],
        speech.dropped,
        _credited(settings, speech.became, words),
        str(target.value) if target else None,
    )


def _from_words(setting: Setting, words: set[str]) -> Setting:
    return Setting(setting.value, SOURCE) if setting.source in words else setting


def _credited(settings: Given, became: list[Became], words: set[str]) -> list[Became]:
    """What came of each word, in canonical flags where it set any."""
    direct = [Became(one.source, name) for name, one in settings.items()]
    found: dict[tuple[str, str], Became] = {}
    for one in (*became, *direct):
        if one.word in words and (one.what in settings or one.what not in option_table()):
            text = _canonical(one.what, settings) if one.what in settings else one.what
            if text:  # there are no words for what is unset
                found.setdefault((one.word, text), Became(one.word, text))
    return list(found.values())


def _canonical(name: str, settings: Given) -> str:
    """`--micro-batch-size 8`."""
    return " ".join(as_flags(option_table()[name], settings[name].value))


def _as_typed(one: _Typed) -> str:
    words = [] if one.flag.means is not None else [word for word in one.words if word]
    return " ".join([one.flag.spelling, *words])


def _beyond_limits(settings: Given, typed: list[_Typed]) -> list[Problem]:
    """Such a value stays in place, so that no rule speaks of a default instead of it."""
    spelling = {one.flag.to: one.flag.spelling for one in typed}
    return [
        Problem(spelling.get(name, row.flag), text)
        for name, one in settings.items()
        if (text := (row := option_table()[name]).problem(one.value)) is not None
    ]


def as_flags(row: Option, value: Any) -> list[str]:
    """A value of an option as words of a canonical command line; unset has none."""
    if row.kind.base is bool and value is not None:
        return [row.flag if value else "--no-" + row.flag.removeprefix("--")]
    if value is None:
        return []
    words = as_words(value)
    if row.kind.base is str and any(word.startswith("-") for word in words):
        # Behind a space it would be taken for a flag, as no number is.
        return [f"{row.flag}={','.join(words)}"]
    return [row.flag, *words]


def _title(section: type) -> str:
    return (section.__doc__ or "").split(".")[0].lower()


def _metavar(flag: Flag) -> str:
    if flag.means is not None:
        return ""
    if flag.option is None:
        return "TEXT"
    if choices := flag.option.declared.limit.choices:
        return "|".join(choices)
    return {int: "N", float: "X", str: "TEXT", bool: "true|false"}[flag.option.kind.base]


@dataclass(frozen=True)
class _Told:
    """What the help of a flag needs to know of its dialect."""

    says: Mapping[str, str]
    usual: Mapping[str, Any]
    offs: Mapping[str, str]


def _offs(dialect: Dialect) -> dict[str, str]:
    """The first spelling that switches each option off."""
    return {flag.to: flag.spelling for flag in reversed(dialect.flags) if flag.means is False}


def _help(flag: Flag, told: _Told) -> str:
    if flag.option is None:
        return told.says.get(flag.spelling) or flag.why or f"see {flag.to.replace('_', ' ')}"
    default = told.usual.get(flag.to, flag.option.default)
    notes = [] if default in (None, ()) else [spelled(default)]
    if flag.means is True and flag.to in told.offs:
        notes.append(told.offs[flag.to])
    shown = f" [{'; '.join(notes)}]" if notes else ""
    return (flag.option.declared.help + shown).replace("%", "%%")


def _is_quiet(flag: Flag) -> bool:
    """A new user meets only what does something; `convoy options` lists the rest too."""
    return flag.older or (flag.option is not None and not flag.option.does_something)
