"""Faults on purpose, for tests: real signals to this process at an exact update.

CONVOY_TEST_FAULTS="kill@7"      SIGKILL after update 7; also term@7, int@7
"""

import os
import re
import signal
from collections.abc import Callable

from convoy.errors import ConfigError
from convoy.events import Event, Updated

VARIABLE = "CONVOY_TEST_FAULTS"

_SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}


def planned_faults() -> Callable[[Event], None]:
    """A subscriber that strikes when the variable says so; without it, one that does nothing."""
    strikes = dict(_strike(word) for word in os.environ.get(VARIABLE, "").split(";") if word)

    def strike(event: Event) -> None:
        if isinstance(event, Updated) and event.update in strikes:
            os.kill(os.getpid(), strikes[event.update])

    return strike


def _strike(word: str) -> tuple[int, signal.Signals]:
    match = re.fullmatch(r"(kill|term|int)@([0-9]+)", word)
    if match is None:
        raise ConfigError(f"{VARIABLE}: {word!r} is no fault; write for example kill@7")
    return int(match[2]), _SIGNALS[match[1]]
