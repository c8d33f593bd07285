"""Words as typed → whole spellings with their values; what no table knows gets the near names."""

import argparse
from collections import deque

from convoy.config.command_line import flag_of
from convoy.config.dialects.dialect import Dialect, Flag
from convoy.config.problems import Problem
from convoy.config.user_text import printable, shown
from convoy.registry import near_names

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
    extra: list[str], parser: argparse.ArgumentParser, dialect: Dialect | None = None
) -> list[Problem]:
    """A problem for each flag or word that no table knows, or only that of another dialect."""
    problems: list[Problem] = []
    is_value = False  # of the unknown flag before it
    for word in extra:
        if _is_flag(word):
            problems.append(_unknown_flag(word.partition("=")[0], parser, dialect))
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


def _unknown_flag(flag: str, parser: argparse.ArgumentParser, dialect: Dialect | None) -> Problem:
    known = parser._option_string_actions
    other = _elsewhere(flag, dialect) if dialect is not None else None
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


def _elsewhere(flag: str, dialect: Dialect) -> str | None:
    from convoy.config.dialects.all import elsewhere  # its tables are seldom needed

    return elsewhere(flag, dialect)
