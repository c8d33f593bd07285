"""Command lines and files of the IPU applications → canonical options.

A command line goes through these modules, in this order:

1. `command` splits it into variables, launchers, interpreter, program and words, and decides which
   application is meant, and so the dialect.
2. `launchers` and `launch_request` read its front: how many processes, on which hosts.
3. `interpret` reads the words by the table of that dialect (`tensorflow`, `pytorch`, `popart`) and
   spells the result as the command of convoy that is printed and run.

A dialect states only differences: spelling → option, how to read its value, functions that combine
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

_CANONICAL = ("convoy", "pytorch")  # these two have every option under its own name


def elsewhere(spelling: str, here: Dialect) -> str | None:
    """Which other dialect knows a spelling, and its counterpart here; None: no dialect knows it."""
    for name, dialect in DIALECTS.items():
        flag = dialect().by_spelling.get(spelling)
        if name == here.name or flag is None:
            continue
        counterpart = next(_counterparts(flag, dialect(), here), None)
        way_out = f"; here it is {counterpart}" if counterpart else ""
        return f"is an option of the {name} dialect{way_out}"
    return None


def _counterparts(flag: Flag, there: Dialect, here: Dialect) -> Iterator[str]:
    """What its own dialect says of it, if that is in canonical words; else the spelling that sets
    the same option, in the same way if there is one, or has a part in it."""
    if here.name in _CANONICAL and flag.spelling in there.says:
        yield there.says[flag.spelling]
    same = [other for other in here.flags if other.to == flag.to and flag.to]
    for means in (flag.means, None):
        yield from (_explained(other.spelling, here) for other in same if other.means == means)
    if flag.means is None:
        yield from (_explained(other.spelling, here) for other in same)
    if flag.option is not None:
        named = re.compile(f"`{flag.option.flag}[ `]")
        parts = (spelling for spelling, text in here.says.items() if named.search(text))
        yield from (_explained(spelling, here) for spelling in parts)


def _explained(spelling: str, here: Dialect) -> str:
    """The same option may be counted in another way."""
    says = here.says.get(spelling)
    return f"{spelling} ({says})" if says else spelling
