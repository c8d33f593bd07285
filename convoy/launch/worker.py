"""What runs inside a worker process: its spec, its message to the supervisor, and its lifeline.

A worker ends when its supervisor does, however that happened: they hold the ends of one pipe.
The usual way, prctl(PR_SET_PDEATHSIG), watches the thread that forked the worker. That is the
forkserver's, which outlives the supervisor as long as a worker does. So the kernel is asked for
SIGKILL as soon as the other end of the pipe closes; it reaches even a stopped process.
"""

import fcntl
import json
import os
import re
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pkgutil import resolve_name
from typing import Any

from convoy.errors import ConvoyError, ExitCode
from convoy.launch.world import World
from convoy.machine import bind_to_cores

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MAX_MESSAGE_BYTES = 262_144  # enough for the longest texts with every character escaped
_MAX_TEXT = 8_000
_MAX_TRACEBACK = 16_000


@dataclass(frozen=True)
class WorkerEnded:
    """The target returned this exit code."""

    code: int


@dataclass(frozen=True)
class WorkerError:
    """An exception ended the target."""

    kind: str  # name of the exception's class
    text: str
    traceback: str
    code: int
    at: float  # seconds of the monotonic clock, which all processes of a host share


WorkerMessage = WorkerEnded | WorkerError  # the last thing a worker sends, and the only one

# What torch reports in the survivors. gloo names its own source file, and no rank.
_PEER_LOST = re.compile(r"gloo/.*(closed by peer|reset by peer|refused|Broken pipe|timeout)", re.S)
_PEER_LATE = re.compile(r"gloo/.*Timed out waiting", re.S)
_PEER_ERRORS = {"DistNetworkError", "DistStoreError"}


def code_of_peer(kind: str, text: str) -> ExitCode | None:
    """If an error was caused by another process: the exit code for that; None otherwise."""
    if _PEER_LATE.search(text):
        return ExitCode.HANG
    if kind in _PEER_ERRORS or _PEER_LOST.search(text):
        return ExitCode.WORKER_LOST
    return None


def encode_message(message: WorkerMessage) -> bytes:
    """One line of JSON, never pickle; the end of a long traceback is kept: it names the error."""
    fields = asdict(message)
    if isinstance(message, WorkerError):
        fields["text"] = message.text[:_MAX_TEXT]
        fields["traceback"] = message.traceback[-_MAX_TRACEBACK:]
        fields["kind"] = message.kind[:200]
    line = json.dumps(fields, ensure_ascii=False).encode(errors="replace") + b"\n"
    assert len(line) <= MAX_MESSAGE_BYTES
    return line


def decode_message(line: bytes) -> WorkerMessage:
    """ValueError for anything that `encode_message` would not have written."""
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("a message nested too deep") from error
    match fields:
        case {"code": int(code), **rest} if not rest:
            return WorkerEnded(code)
        case {
            "kind": str(kind),
            "text": str(text),
            "traceback": str(traceback),
            "code": int(code),
            "at": float(at),
        }:
            return WorkerError(kind, text, traceback, code, at)
    raise ValueError(f"not a message: {line[:80]!r}")


@dataclass(frozen=True)
class WorkerSpec:
    """What one worker runs."""

    target: str  # "module:function", which takes the world and the payload: returns an exit code
    world: World
    payload: str  # JSON
    threads: int
    cores: tuple[int, ...]
    environment: dict[str, str]  # the supervisor's now; the forkserver's may be older


def worker_main(
    spec: WorkerSpec,
    messages: Connection,
    lifeline: Connection,
    stdout: Connection,
    stderr: Connection,
) -> None:
    """Where a worker begins. It exits without waiting for anything that is still running.

    The connections are its ends of the pipes between it and its supervisor.
    """
    end_with_pipe(lifeline.fileno())
    _start_session()
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
    message = _run(spec)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    line = memoryview(encode_message(message))
    with suppress(BrokenPipeError):  # a supervisor that is gone needs no message
        while line:
            line = line[os.write(messages.fileno(), line) :]
    os._exit(message.code)


def end_with_pipe(descriptor: int) -> None:
    """From now on this process lives only as long as somebody has the pipe's other end open."""
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    else:
        threading.Thread(target=_end_when_closed, args=(descriptor, None), daemon=True).start()
    _end_when_closed(descriptor, milliseconds=0)  # it may have been before the kernel was watching


def _end_when_closed(descriptor: int, milliseconds: int | None) -> None:
    """Wait so long, or for ever. Nothing is ever sent, so anything to read is the end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if poll.poll(milliseconds):
        os.kill(os.getpid(), signal.SIGKILL)


def _start_session() -> None:
    """A session of our own: Ctrl-C reaches the supervisor alone, which forwards it once."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _run(spec: WorkerSpec) -> WorkerMessage:
    try:
        # Blocked since the forkserver started; a pending signal is delivered and handled here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        _set_up_process(spec)
        target: Callable[[World, dict[str, Any]], int] = resolve_name(spec.target)
        return WorkerEnded(int(target(spec.world, json.loads(spec.payload))))
    except SystemExit as exiting:  # as the interpreter reads the argument of sys.exit
        code = ExitCode.DONE if exiting.code is None else exiting.code
        return WorkerEnded(code if isinstance(code, int) else ExitCode.BUG)
    except KeyboardInterrupt:
        # Nobody was ready to finish an update: the supervisor must not wait for the others to.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        return WorkerEnded(ExitCode.INTERRUPTED)
    except BaseException as error:
        return WorkerError(
            kind=type(error).__name__,
            text=str(error),
            traceback="".join(traceback.format_exception(error)),
            code=error.code if isinstance(error, ConvoyError) else ExitCode.BUG,
            at=time.monotonic(),
        )


def _set_up_process(spec: WorkerSpec) -> None:
    os.environ.clear()
    os.environ.update(spec.environment)
    os.environ["OMP_NUM_THREADS"] = str(spec.threads)  # for what is loaded or started later
    bind_to_cores(spec.cores)

    import torch  # loaded already when we come from the forkserver

    torch.set_num_threads(spec.threads)
