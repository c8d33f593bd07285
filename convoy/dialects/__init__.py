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
from collections.abc import Callable

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


def find_in_other_dialects(spelling: str, current: Dialect) -> str | None:
    """Name the other dialect that has a spelling, and its counterpart in the current one.

    None if no dialect has it.
    """
    for name, dialect in DIALECTS.items():
        flag = dialect().by_spelling.get(spelling)
        if name == current.name or flag is None:
            continue
        counterpart = _find_counterpart(flag, dialect(), current)
        text = f"is an option of the {name} dialect"
        if counterpart is None:
            return text
        is_usable = not counterpart.startswith(("no ", "rejected "))
        return f"{text}; use {counterpart}" if is_usable else f"{text} ({counterpart})"
    return None


def _find_counterpart(flag: Flag, source: Dialect, current: Dialect) -> str | None:
    """Return the best counterpart of a flag in the current dialect.

    The help text of the source dialect, if the current dialect uses canonical names; else the flag
    that sets the same option, preferably to the same value; else one that contributes to it.
    """
    if current.name in ("convoy", "pytorch") and flag.spelling in source.help_texts:
        return source.help_texts[flag.spelling]
    if not flag.option_name:
        return None
    spellings = [
        candidate.spelling
        for candidate in sorted(current.flags, key=lambda other: other.const != flag.const)
        if candidate.option_name == flag.option_name
        and (flag.const is None or candidate.const in (flag.const, None))
    ]
    if flag.option is not None:
        named = re.compile(f"`{flag.option.flag}[ `]")
        spellings += [name for name, text in current.help_texts.items() if named.search(text)]
    if not spellings:
        return None
    # The same option may be counted in another unit, so add the help text.
    text = current.help_texts.get(spellings[0])
    return f"{spellings[0]} ({text})" if text else spellings[0]
