"""Translate command lines and files of the IPU applications into canonical options.

A command line passes through these modules, in this order:

1. `command` splits it into variables, launchers, interpreter, program and arguments, and selects
   the application and with it the dialect.
2. `launchers` and `launch_request` read everything before the program: how many processes run on
   which hosts.
3. `interpret` parses the arguments with the table of that dialect (`tensorflow`, `pytorch`,
   `popart`) and writes the result as the convoy command that is printed and run.

A dialect states only differences: spelling → option, how to parse its value, functions that combine
several flags into options, and the defaults its users rely on (`convoy.config.flags.Dialect`).
"""

import re
from collections.abc import Callable, Iterator

from convoy.config.flags import Dialect, Flag, canonical
from convoy.dialects.popart import popart
from convoy.dialects.pytorch import pytorch
from convoy.dialects.tensorflow import tensorflow

DIALECTS: dict[str, Callable[[], Dialect]] = {
    "convoy": canonical,
    "pytorch": pytorch,
    "tensorflow": tensorflow,
    "popart": popart,
}

_CANONICAL_DIALECTS = ("convoy", "pytorch")  # every option has its own name in both


def find_in_other_dialects(spelling: str, current: Dialect) -> str | None:
    """Name the other dialect that has a spelling, and its counterpart in the current one.

    None if no dialect has it.
    """
    for name, dialect in DIALECTS.items():
        flag = dialect().by_spelling.get(spelling)
        if name == current.name or flag is None:
            continue
        counterpart = next(_find_counterparts(flag, dialect(), current), None)
        way_out = f"; use {counterpart}" if counterpart else ""
        return f"is an option of the {name} dialect{way_out}"
    return None


def _find_counterparts(flag: Flag, source: Dialect, current: Dialect) -> Iterator[str]:
    """Yield counterparts of a flag in the current dialect, the best one first.

    The help text of the source dialect, if the current dialect uses canonical names; then flags
    that set the same option, preferably to the same value; then flags that contribute to it.
    """
    if current.name in _CANONICAL_DIALECTS and flag.spelling in source.help_texts:
        yield source.help_texts[flag.spelling]
    same = [
        candidate
        for candidate in current.flags
        if candidate.option_name == flag.option_name and flag.option_name
    ]
    for means in (flag.const, None):
        yield from (
            _with_help_text(candidate.spelling, current)
            for candidate in same
            if candidate.const == means
        )
    if flag.const is None:
        yield from (_with_help_text(candidate.spelling, current) for candidate in same)
    if flag.option is not None:
        named = re.compile(f"`{flag.option.flag}[ `]")
        parts = (spelling for spelling, text in current.help_texts.items() if named.search(text))
        yield from (_with_help_text(spelling, current) for spelling in parts)


def _with_help_text(spelling: str, current: Dialect) -> str:
    """Add the help text, because the same option may be counted in another unit."""
    text = current.help_texts.get(spelling)
    return f"{spelling} ({text})" if text else spelling
