"""Faults on purpose, for tests: at an exact update, in one process of a run or in all.

CONVOY_TEST_FAULTS="kill@7;flip@9:2"      after update 7 SIGKILL to every process; after update 9
                                          something that the run knows as `flip`, on rank 2
"""

import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from convoy.errors import ConfigError
from convoy.events import Event, Updated

VARIABLE = "CONVOY_TEST_FAULTS"

_SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}

Deed = Callable[[], object]


@dataclass(frozen=True)
class _Fault:
    deed: str
    update: int
    rank: int | None  # None: everywhere


def planned_faults(rank: int, deeds: Mapping[str, Deed]) -> Callable[[Event], None]:
    """A subscriber that strikes when the variable says so; without it, one that does nothing."""
    signals = {name: partial(os.kill, os.getpid(), number) for name, number in _SIGNALS.items()}
    known: dict[str, Deed] = {**signals, **deeds}
    words = [word for word in os.environ.get(VARIABLE, "").split(";") if word]
    faults = [one for one in (_fault(word, known) for word in words) if one.rank in (None, rank)]

    def strike(event: Event) -> None:
        for fault in faults:
            if isinstance(event, Updated) and event.update == fault.update:
                known[fault.deed]()

    return strike


def _fault(word: str, known: Mapping[str, Deed]) -> _Fault:
    match = re.fullmatch(r"([a-z]+)@([0-9]+)(?::([0-9]+))?", word)
    if match is None or match[1] not in known:
        names = ", ".join(known)
        raise ConfigError(f"{VARIABLE}: {word!r} is no fault; write kill@7 or kill@7:1 ({names})")
    return _Fault(match[1], int(match[2]), int(match[3]) if match[3] else None)
