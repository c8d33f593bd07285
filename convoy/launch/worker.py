"""A worker process: its spec, its message to the supervisor, and its lifeline.

A worker ends when its supervisor does: both have one end of a pipe, the lifeline, and the kernel
sends SIGKILL as soon as the other end closes, which ends even a stopped process. The usual method,
prctl(PR_SET_PDEATHSIG), watches the process that forked the worker, here the forkserver, which
lives as long as any worker.
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
    """The target returned an exit code."""

    code: int


@dataclass(frozen=True)
class WorkerError:
    """An exception ended the target."""

    kind: str  # name of the exception's class
    text: str
    traceback: str
    code: int
    time: float  # seconds of the monotonic clock, which all processes of a host share


@dataclass(frozen=True)
class WorkerRecord:
    """JSON data that a target publishes while it runs."""

    record: dict[str, Any]


WorkerMessage = WorkerEnded | WorkerError | WorkerRecord  # one of the first two is the last message

# Errors that torch raises in surviving processes. gloo names its source file but no rank.
_PEER_LOST = re.compile(r"gloo/.*(closed by peer|reset by peer|refused|Broken pipe|timeout)", re.S)
_PEER_TIMEOUT = re.compile(r"gloo/.*Timed out waiting", re.S)
_PEER_ERRORS = {"DistNetworkError", "DistStoreError"}


def peer_error_code(kind: str, text: str) -> ExitCode | None:
    """Return the exit code if another process caused the error; None otherwise."""
    if _PEER_TIMEOUT.search(text):
        return ExitCode.HANG
    if kind in _PEER_ERRORS or _PEER_LOST.search(text):
        return ExitCode.WORKER_LOST
    return None


def encode_message(message: WorkerMessage) -> bytes:
    """Encode as one line of JSON, not pickle; a long traceback is shortened to its end."""
    fields = asdict(message)
    if isinstance(message, WorkerError):
        fields["text"] = message.text[:_MAX_TEXT]
        fields["traceback"] = message.traceback[-_MAX_TRACEBACK:]
        fields["kind"] = message.kind[:200]
    line = json.dumps(fields, ensure_ascii=False).encode(errors="replace") + b"\n"
    assert len(line) <= MAX_MESSAGE_BYTES
    return line


_pipe_to_supervisor: Connection | None = None


def publish(record: dict[str, Any]) -> None:
    """Send JSON data to the supervisor; does nothing in a process that is not its worker."""
    if _pipe_to_supervisor is not None:
        _send(_pipe_to_supervisor, WorkerRecord(record))


def _send(pipe: Connection, message: WorkerMessage) -> None:
    line = memoryview(encode_message(message))
    with suppress(BrokenPipeError):  # the supervisor is gone
        while line:
            line = line[os.write(pipe.fileno(), line) :]


def decode_message(line: bytes) -> WorkerMessage:
    """Decode a message; raise ValueError for anything `encode_message` does not write."""
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("the message is nested too deeply") from error
    match fields:
        case {"code": int(code), **rest} if not rest:
            return WorkerEnded(code)
        case {"record": dict(record), **rest} if not rest:
            return WorkerRecord(record)
        case {
            "kind": str(kind),
            "text": str(text),
            "traceback": str(traceback),
            "code": int(code),
            "time": float(seconds),
        }:
            return WorkerError(kind, text, traceback, code, seconds)
    raise ValueError(f"not a message: {line[:80]!r}")


@dataclass(frozen=True)
class WorkerSpec:
    """What one worker runs, and how."""

    target: str  # "module:function"; takes the world and the payload, returns an exit code
    world: World
    payload: Any  # pickled
    threads: int
    cores: tuple[int, ...]
    environment: dict[str, str]  # of the supervisor; the forkserver's may be outdated


def worker_main(
    spec: WorkerSpec,
    messages: Connection,
    lifeline: Connection,
    stdout: Connection,
    stderr: Connection,
) -> None:
    """Entry point of a worker. It exits without waiting for its threads.

    The connections are its ends of the pipes to the supervisor.
    """
    exit_with_pipe(lifeline.fileno())
    os.setsid()  # Ctrl-C reaches only the supervisor, which forwards it once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
    global _pipe_to_supervisor
    _pipe_to_supervisor = messages
    message = _run(spec)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    _send(messages, message)
    os._exit(message.code)


def exit_with_pipe(descriptor: int) -> None:
    """Kill this process as soon as the other end of the pipe is closed."""
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    else:
        threading.Thread(target=_exit_when_closed, args=(descriptor, None), daemon=True).start()
    _exit_when_closed(descriptor, milliseconds=0)  # in case it was closed before


def _exit_when_closed(descriptor: int, milliseconds: int | None) -> None:
    """Wait with a timeout, or forever. Nothing is ever sent, so a readable pipe is closed."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if poll.poll(milliseconds):
        os.kill(os.getpid(), signal.SIGKILL)


def _run(spec: WorkerSpec) -> WorkerEnded | WorkerError:
    try:
        # Signals are blocked since the forkserver started; a pending one is handled here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        os.environ.clear()
        os.environ.update(spec.environment)
        # For libraries and processes that are loaded later.
        os.environ["OMP_NUM_THREADS"] = str(spec.threads)
        bind_to_cores(spec.cores)
        import torch  # preloaded by the forkserver

        torch.set_num_threads(spec.threads)
        target: Callable[[World, Any], int] = resolve_name(spec.target)
        return WorkerEnded(int(target(spec.world, spec.payload)))
    except SystemExit as exiting:  # the same codes as the interpreter's
        code = ExitCode.DONE if exiting.code is None else exiting.code
        return WorkerEnded(code if isinstance(code, int) else ExitCode.BUG)
    except KeyboardInterrupt:
        # No update can be finished yet: the supervisor must not wait for the other workers.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        return WorkerEnded(ExitCode.INTERRUPTED)
    except BaseException as error:
        return WorkerError(
            kind=type(error).__name__,
            text=str(error),
            traceback="".join(traceback.format_exception(error)),
            code=error.code if isinstance(error, ConvoyError) else ExitCode.BUG,
            time=time.monotonic(),
        )
