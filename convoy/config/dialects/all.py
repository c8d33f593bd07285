"""Every dialect by name, and where a spelling of one stands in the others."""

import re
from collections.abc import Callable, Iterator

from convoy.config.dialects.canonical import canonical
from convoy.config.dialects.dialect import Dialect, Flag
from convoy.config.dialects.popart import popart
from convoy.config.dialects.pytorch import pytorch
from convoy.config.dialects.tensorflow import tensorflow

DIALECTS: dict[str, Callable[[], Dialect]] = {
    "convoy": canonical,
    "pytorch": pytorch,
    "tensorflow": tensorflow,
    "popart": popart,
}

_CANONICAL = ("convoy", "pytorch")  # these two have every option under its own name


def elsewhere(spelling: str, here: Dialect) -> str | None:
    """Which other dialect knows a spelling, and how it is said here; None: none does."""
    for name, dialect in DIALECTS.items():
        flag = dialect().by_spelling.get(spelling)
        if name == here.name or flag is None:
            continue
        said = next(_said_here(flag, dialect(), here), None)
        way_out = f"; here it is {said}" if said else ""
        return f"is an option of the {name} dialect{way_out}"
    return None


def _said_here(flag: Flag, there: Dialect, here: Dialect) -> Iterator[str]:
    """What its own dialect says of it, if that is in words of here; else the spelling that sets
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
        said = (spelling for spelling, text in here.says.items() if named.search(text))
        yield from (_explained(spelling, here) for spelling in said)


def _explained(spelling: str, here: Dialect) -> str:
    """The same option may be counted in another way."""
    says = here.says.get(spelling)
    return f"{spelling} ({says})" if says else spelling
