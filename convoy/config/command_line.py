"""Parse command line arguments into settings, using the flags of a dialect.

argparse splits the arguments; unknown ones are reported with similar names.
"""

import argparse
import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from convoy.config.flags import (
    TARGET,
    Dialect,
    DialectLookup,
    Flag,
    MappedWord,
    Translation,
    combine_settings,
)
from convoy.config.option import Option, OptionTypeError, format_value
from convoy.config.option_docs import default_as_text
from convoy.config.schema import (
    COMMAND_LINE,
    SECTIONS,
    DroppedWord,
    Problem,
    Setting,
    Settings,
    limit_problems,
    option_table,
)
from convoy.errors import ConfigError
from convoy.registry import near_names
from convoy.text import printable, quote_shortened


class ConfigArgumentParser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")

    def _get_option_tuples(self, _: str) -> list[Any]:
        """Disable abbreviations: prefixes are already expanded, and `-hosts` is not `-h`."""
        return []


FlagOccurrence = tuple[Flag, list[str]]  # a flag and the words after it


class _AppendFlag(argparse.Action):
    """Collects flags in order, so that the last flag for an option applies."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        del parser, option_string
        words = values if isinstance(values, list) else [values]
        namespace.flag_occurrences = [*namespace.flag_occurrences, (self.const, words)]


def flag_of(action: argparse.Action | None) -> Flag | None:
    """The flag of a dialect behind an action; None for an argument of the command itself."""
    return action.const if isinstance(action, _AppendFlag) else None


@dataclass(frozen=True)
class RunHelp:
    """What the help of a command says about the options of a run."""

    common: Mapping[str, Sequence[str]] | None = None  # option names by title; None: all options
    texts: Mapping[str, str] = field(default_factory=dict)  # help texts that differ here, by name
    metavars: Mapping[str, str] = field(default_factory=dict)  # that differ here, by name
    defaults: Mapping[str, Any] = field(default_factory=dict)  # that differ here, by name
    default_source: str = ""  # such as `the run`, if its values are the defaults

    def group_titles(self) -> dict[str, str]:
        """The title under which each option is listed."""
        if self.common is not None:
            return {name: title for title, names in self.common.items() for name in names}
        titles = {name: (section.__doc__ or "").split(".")[0] for name, section in SECTIONS.items()}
        return {name: titles[row.section].lower() for name, row in option_table().items()}


def add_flags(
    parser: argparse.ArgumentParser, dialect: Dialect, run_help: RunHelp | None = None
) -> None:
    """Add every spelling of the dialect to a parser.

    The help lists all options by section, or only the common ones, in brief, under their titles.
    """
    parser.set_defaults(flag_occurrences=[])
    run_help = run_help or RunHelp()
    group_of = run_help.group_titles()
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(group_of.values())}
    hidden = parser.add_argument_group("parts of a value")
    listed: set[tuple[str, Any]] = set()
    position = {name: index for index, name in enumerate(group_of)}

    def sort_key(flag: Flag) -> tuple[float, bool]:
        is_renamed = dialect.is_canonical and flag.option is not None
        shown = flag.option.shown_flag if is_renamed and flag.option else flag.spelling
        return position.get(flag.option_name, math.inf), flag.spelling != shown

    for flag in sorted(dialect.flags, key=sort_key):
        # `--no-x` is shown beside `--x`; other spellings and options without an effect are hidden.
        effect = (flag.option_name, "switch" if isinstance(flag.const, bool) else flag.const)
        has_effect = flag.option is None or flag.option.has_effect
        is_listed = flag.option_name in group_of if flag.option else run_help.common is None
        is_hidden = effect in listed or flag.deprecated or not has_effect or not is_listed
        group = groups[group_of[flag.option_name]] if flag.option and is_listed else hidden
        group.add_argument(
            flag.spelling,
            dest=f"_{flag.spelling}",
            action=_AppendFlag,
            const=flag,
            nargs="*" if flag.takes_list else None,
            metavar=run_help.metavars.get(flag.option_name) or _metavar(flag),
            help=argparse.SUPPRESS if is_hidden else _help(flag, dialect, run_help),
        )
        listed.add(effect)


@dataclass(frozen=True)
class ParsedFlags:
    """The settings from a command line, with all problems and ignored arguments."""

    settings: Settings
    problems: list[Problem]
    dropped: list[DroppedWord]
    mapped: list[MappedWord] = field(default_factory=list)
    target: str | None = None


def parse_flags(
    occurrences: list[FlagOccurrence],
    dialect: Dialect,
    named_config: Mapping[str, Setting] = {},
    launcher: Mapping[str, Setting] = {},
) -> ParsedFlags:
    """Parse flags. They override a named configuration; settings of a launcher override them."""
    translation = Translation({}, named_config, set_by_launcher=frozenset(launcher))
    for flag, words in occurrences:
        text = " ".join([flag.spelling, *filter(None, words if flag.const is None else [])])
        try:
            value = flag.parse(words)
        except OptionTypeError as error:
            translation.add_problem(flag.spelling, str(error))
            continue
        if flag.dropped:
            translation.add_dropped(text, flag.dropped)
        else:
            translation.settings.pop(flag.option_name, None)  # moves to the end
            translation.settings[flag.option_name] = Setting(value, text)
    typed = {setting.source for setting in translation.settings.values()}
    for name, fixed in launcher.items():
        setting = translation.settings.get(name, fixed)
        if setting.value != fixed.value:
            translation.add_dropped(setting.source, f"{fixed.source} sets {fixed.value}")
    translation.settings.update(launcher)
    settings = combine_settings(translation, dialect.combiners)
    spelling = {name: option_table()[name].shown_flag for name in settings}
    spelling |= {flag.option_name: flag.spelling for flag, _ in occurrences}
    return ParsedFlags(
        {
            name: Setting(setting.value, COMMAND_LINE) if setting.source in typed else setting
            for name, setting in settings.items()
        },
        # Invalid values stay in the settings, so that no rule reports a default instead.
        [*translation.problems, *limit_problems(settings, lambda name, _: spelling[name])],
        translation.dropped,
        _map_words(settings, translation.mapped, typed),
        str(target.value) if (target := translation.settings.get(TARGET)) else None,
    )


def _map_words(settings: Settings, mapped: list[MappedWord], words: set[str]) -> list[MappedWord]:
    """The effect of each word: the canonical flags it sets, such as `--micro-batch-size 8`."""
    table = option_table()
    direct = [MappedWord(setting.source, name) for name, setting in settings.items()]
    effects: dict[tuple[str, str], MappedWord] = {}
    for word, name in ((entry.word, entry.mapped_to) for entry in (*mapped, *direct)):
        if word in words and (name in settings or name not in table):
            text = name
            if name in settings:
                text = " ".join(table[name].to_cli_args(settings[name].value))
            if text:  # an unset option has no flag
                effects.setdefault((word, text), MappedWord(word, text))
    return list(effects.values())


def _metavar(flag: Flag) -> str:
    if flag.const is not None:
        return ""
    if flag.option is None:
        return "TEXT"
    if choices := flag.option.limit.choices:
        return "|".join(choices)
    types = {int: "N", float: "X", str: "TEXT", bool: "true|false"}
    return flag.option.metavar or types[flag.option.value_type.base]


def _help(flag: Flag, dialect: Dialect, run_help: RunHelp) -> str:
    """The help text, the default, and how to switch it off."""
    row = flag.option
    if row is None:
        other = flag.dropped or f"see {flag.option_name.replace('_', ' ')}"
        return dialect.help_texts.get(flag.spelling, other)
    if row.name in run_help.texts:
        return run_help.texts[row.name].replace("%", "%%")
    text = row.help if run_help.common is None else _brief_help(row, run_help)
    others = [other for other in (row.flag, *row.aliases) if other != row.shown_flag]
    if others and dialect.is_canonical and run_help.common is None:
        text += f" Also {', '.join(others)}."
    notes = []
    if not run_help.default_source:
        defaults = {**dialect.defaults({}), **run_help.defaults}
        is_replaced = row.name in defaults
        default = format_value(defaults[row.name]) if is_replaced else default_as_text(row)
        notes = [] if default == format_value(None) else [default]
    if flag.const is True and flag.option_name in dialect.off_switches:
        notes.append(dialect.off_switches[flag.option_name])
    suffix = f" [{'; '.join(notes)}]" if notes else ""
    return (text + suffix).replace("%", "%%")


def _brief_help(row: Option, run_help: RunHelp) -> str:
    """The first sentence, and what applies without the option or without its value."""
    kept = ["Without a value"]
    if not run_help.default_source and row.name not in run_help.defaults:
        kept.append("Default")
    first, *others = row.help.removesuffix(".").split(". ")
    return ". ".join([first, *(text for text in others if text.startswith(tuple(kept)))]) + "."


_MAX_LISTED = 8  # matches of an ambiguous prefix
# Prefixes never mean these: the other option that they could mean is older.
_NO_PREFIX = ("--gradient-accumulation-dtype", "--help-all")


def expand_prefixes(words: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Expand abbreviated flags and attach their values, so that argparse has nothing to guess.

    `--gradient-a 2` → `--gradient-accumulation=2`, `--augment` → `--augment=true`, `--lr` without
    a value → `--lr=`. An ambiguous prefix is left as it is and reported as unknown later.
    """
    attached: list[str] = []
    rest = deque(words)
    while rest and rest[0] != "--":
        name, equals, value = rest.popleft().partition("=")
        action = _find_action(name, parser)
        if action is not None:
            name = next(text for text in action.option_strings if text.startswith(name))
        flag = flag_of(action)
        if flag is not None and not equals and not flag.takes_list:
            equals = "="
            if flag.const is not None:
                value = "true"
            elif rest and not _is_flag(rest[0]):
                value = rest.popleft()
        if action is not None and value == "--":  # argparse would remove it
            value = "--," if flag is not None and flag.takes_list else ""
        attached.append(name + equals + value)
    return [*attached, *rest]


def unknown_argument_problems(
    extra: list[str], parser: argparse.ArgumentParser, other_dialects: DialectLookup | None = None
) -> list[Problem]:
    """A problem for each argument that is unknown, or known only in another dialect."""
    positional = positional_arguments(extra)
    return [
        _unknown_flag(word.partition("=")[0], parser, other_dialects)
        if _is_flag(word)
        else Problem("", f"unexpected argument {quote_shortened(word)}")
        for word in extra
        if _is_flag(word) or word in positional
    ]


def positional_arguments(extra: list[str]) -> list[str]:
    """The words that are neither flags nor values of unknown flags."""
    words, is_value = [], False
    for word in extra:
        if _is_flag(word):
            is_value = "=" not in word
        elif not is_value:
            words.append(word)
    return words


def _find_action(name: str, parser: argparse.ArgumentParser) -> argparse.Action | None:
    """The action of a flag, or of a prefix whose expansions all mean the same."""
    known = parser._option_string_actions
    if not name.startswith("--") or name in known:
        return known.get(name)
    matches = [text for text in known if text.startswith(name) and text not in _NO_PREFIX]
    meanings = {
        (flag.option_name, flag.parser, flag.const)
        if (flag := flag_of(known[text]))
        else known[text].dest
        for text in matches
    }
    return known[matches[0]] if len(meanings) == 1 else None


def _is_flag(word: str) -> bool:
    """Whether a word is a flag: it starts with a dash and is neither `-` nor a number."""
    if not word.startswith("-") or word == "-":
        return False
    with suppress(ValueError):
        float(word)
        return False
    return True


def _unknown_flag(
    flag: str, parser: argparse.ArgumentParser, other_dialects: DialectLookup | None
) -> Problem:
    known = parser._option_string_actions
    other = other_dialects(flag) if other_dialects else None
    matches = [spelling for spelling in known if spelling.startswith(flag)]
    if flag.startswith("--") and matches:
        listed = ", ".join(matches[:_MAX_LISTED]) + (", …" if len(matches) > _MAX_LISTED else "")
        exact = f"; {flag} itself {other}" if other else ""
        return Problem("", f"option {flag} is ambiguous: it could be {listed}{exact}")
    if other is not None:
        return Problem(flag, other)
    near = near_names(flag, known)
    hint = f"did you mean {', '.join(near)}?" if near else f"see `{parser.prog} --help`"
    return Problem("", f"unknown option {printable(flag)}; {hint}")
