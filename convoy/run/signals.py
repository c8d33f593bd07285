"""Signals become wishes: a handler only remembers, the loop acts between two updates."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from convoy.engine.stopping import StopRequest
from convoy.errors import ExitCode

_SHOW_CURSOR = "\x1b[?25h"


@contextmanager
def stop_on_signals(stop: StopRequest) -> Iterator[None]:
    """SIGTERM and SIGHUP ask for a save and a stop, SIGINT too; a second SIGINT stops at once."""

    def preempt(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop.ask("preempted")

    interrupts = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        del number, frame
        interrupts += 1
        if interrupts > 1:
            _leave_now()
        stop.ask("interrupted")

    wanted = {signal.SIGTERM: preempt, signal.SIGHUP: preempt, signal.SIGINT: interrupt}
    # What was ignored when we were started stays ignored: that is how `nohup` works.
    heard = {n: handler for n, handler in wanted.items() if signal.getsignal(n) != signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in heard.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_now() -> None:
    """No clean-up: an unfinished checkpoint stays a temporary folder, the last one is intact."""
    if sys.stdout is not None and sys.stdout.isatty():
        os.write(sys.stdout.fileno(), _SHOW_CURSOR.encode())
    os._exit(ExitCode.INTERRUPTED)
