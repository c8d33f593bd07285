"""Every dialect by name, and where a spelling of one stands in the others."""

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


def elsewhere(spelling: str, here: Dialect) -> str | None:
    """Which other dialect knows a spelling, and how it is said here; None: none does."""
    for name, dialect in DIALECTS.items():
        flag = dialect().by_spelling.get(spelling)
        if name == here.name or flag is None:
            continue
        said = _said_here(flag, here)
        way_out = f"; here it is {said}" if said else ""
        return f"is an option of the {name} dialect{way_out}"
    return None


def _said_here(flag: Flag, here: Dialect) -> str | None:
    """The spelling that sets the same option, in the same way if there is one."""
    same = [other for other in here.flags if other.to == flag.to and flag.to]
    return next(_best(flag, same), None)


def _best(flag: Flag, same: list[Flag]) -> Iterator[str]:
    yield from (other.spelling for other in same if other.means == flag.means)
    yield from (other.spelling for other in same)
