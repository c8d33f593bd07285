"""The worker's side: a fresh process becomes one rank of the run, does its part, and reports."""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from convoy.errors import ConvoyError, ExitCode
from convoy.launch.cores import bind
from convoy.launch.lifeline import hold
from convoy.launch.messages import Ended, Failed, Message, Started, encode
from convoy.launch.world import World

# A target takes its place in the world and the payload, and returns an exit code.
Target = Callable[[World, dict[str, Any]], int]

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Order:
    """What one worker is to do. Travels as JSON."""

    target: str  # "module:function"
    world: World
    payload: str  # JSON
    threads: int
    cores: tuple[int, ...]
    environment: dict[str, str]  # the supervisor's now; the forkserver's may be older

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Order":
        fields = json.loads(text)
        return cls(**fields | {"world": World(**fields["world"]), "cores": tuple(fields["cores"])})


@dataclass(frozen=True)
class Ends:
    """A worker's ends of the pipes between it and its supervisor."""

    report: Connection
    lifeline: Connection
    out: Connection
    err: Connection


def work(order: str, ends: Ends) -> None:
    """Where a worker begins. It leaves without waiting for anything that is still running."""
    hold(ends.lifeline.fileno())
    _stand_apart()
    _speak_through(ends.out, ends.err)
    message = _carry_out(Order.from_json(order), ends.report)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    _tell(ends.report, message)
    os._exit(message.code)


def _stand_apart() -> None:
    """A session of our own: Ctrl-C reaches the supervisor alone, which passes it on once."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _speak_through(out: Connection, err: Connection) -> None:
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)


def _carry_out(order: Order, report: Connection) -> Ended | Failed:
    try:
        # Held back since the server started; one that waits strikes here, where it is understood.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        _settle(order)
        _tell(report, Started(os.getpid()))
        return Ended(int(find(order.target)(order.world, json.loads(order.payload))))
    except SystemExit as leaving:
        return Ended(_exit_code(leaving.code))
    except KeyboardInterrupt:
        # Nobody was ready to finish an update: the supervisor must not wait for the others to.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        return Ended(ExitCode.INTERRUPTED)
    except BaseException as error:
        return _failure(error)


def _settle(order: Order) -> None:
    """Our surroundings and our share of the machine."""
    os.environ.clear()
    os.environ.update(order.environment)
    os.environ["OMP_NUM_THREADS"] = str(order.threads)  # for what is loaded or started later
    bind(order.cores)

    import torch  # loaded already when we come from the forkserver

    torch.set_num_threads(order.threads)


def find(target: str) -> Target:
    """The function that `module:function` names."""
    module, _, name = target.partition(":")
    function: Target = vars(import_module(module))[name]
    return function


def _exit_code(code: object) -> int:
    """As the interpreter reads what sys.exit was given."""
    if code is None:
        return ExitCode.DONE
    return code if isinstance(code, int) else ExitCode.BUG


def _failure(error: BaseException) -> Failed:
    return Failed(
        kind=type(error).__name__,
        text=str(error),
        traceback="".join(traceback.format_exception(error)),
        code=error.code if isinstance(error, ConvoyError) else ExitCode.BUG,
        at=time.monotonic(),
    )


def _tell(report: Connection, message: Message) -> None:
    """All of the line; a supervisor that is gone needs no message."""
    line = memoryview(encode(message))
    with suppress(BrokenPipeError):
        while line:
            line = line[os.write(report.fileno(), line) :]
