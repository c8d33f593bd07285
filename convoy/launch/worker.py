"""What runs inside a worker process: its spec, its messages to the supervisor, and its lifeline.

A worker ends when its supervisor does, however that happened: they hold the ends of one pipe.
The usual way, prctl(PR_SET_PDEATHSIG), watches the thread that forked the worker. That is the
forkserver's, which outlives the supervisor as long as a worker does. So the kernel is asked for
SIGKILL as soon as the other end of the pipe closes; it reaches even a stopped process.
"""

import fcntl
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from convoy.errors import ConvoyError, ExitCode
from convoy.launch.world import World
from convoy.machine import bind_to_cores

# A target takes its rank in the world and the payload, and returns an exit code.
Target = Callable[[World, dict[str, Any]], int]

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MAX_MESSAGE_BYTES = 262_144  # enough for the longest texts with every character escaped
_MAX_TEXT = 8_000
_MAX_TRACEBACK = 16_000


@dataclass(frozen=True)
class WorkerStarted:
    """The worker is ready to begin."""

    pid: int


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


Message = WorkerStarted | WorkerEnded | WorkerError
_NAMES: dict[type[Message], str] = {
    WorkerStarted: "started",
    WorkerEnded: "ended",
    WorkerError: "failed",
}


def encode_message(message: Message) -> bytes:
    """One line of JSON, never pickle; the end of a long traceback is kept: it names the error."""
    fields = {"message": _NAMES[type(message)], **asdict(message)}
    if isinstance(message, WorkerError):
        fields["text"] = message.text[:_MAX_TEXT]
        fields["traceback"] = message.traceback[-_MAX_TRACEBACK:]
        fields["kind"] = message.kind[:200]
    line = json.dumps(fields, ensure_ascii=False).encode(errors="replace") + b"\n"
    assert len(line) <= MAX_MESSAGE_BYTES
    return line


def decode_message(line: bytes) -> Message:
    """ValueError for anything that `encode_message` would not have written."""
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("a message nested too deep") from error
    match fields:
        case {"message": "started", "pid": int(pid)}:
            return WorkerStarted(pid)
        case {"message": "ended", "code": int(code)}:
            return WorkerEnded(code)
        case {
            "message": "failed",
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
    """What one worker runs. Sent as JSON."""

    target: str  # "module:function"
    world: World
    payload: str  # JSON
    threads: int
    cores: tuple[int, ...]
    environment: dict[str, str]  # the supervisor's now; the forkserver's may be older

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "WorkerSpec":
        fields = json.loads(text)
        return cls(**fields | {"world": World(**fields["world"]), "cores": tuple(fields["cores"])})


@dataclass(frozen=True)
class WorkerPipes:
    """A worker's ends of the pipes between it and its supervisor."""

    messages: Connection
    lifeline: Connection
    stdout: Connection
    stderr: Connection


def worker_main(spec: str, pipes: WorkerPipes) -> None:
    """Where a worker begins. It exits without waiting for anything that is still running."""
    end_with_pipe(pipes.lifeline.fileno())
    _start_session()
    _redirect_output(pipes.stdout, pipes.stderr)
    message = _run(WorkerSpec.from_json(spec), pipes.messages)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    _send(pipes.messages, message)
    os._exit(message.code)


def end_with_pipe(descriptor: int) -> None:
    """From now on this process lives only as long as somebody has the pipe's other end open."""
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    else:
        threading.Thread(target=_wait_and_end, args=(descriptor,), daemon=True).start()
    if _is_closed(descriptor, milliseconds=0):  # before the kernel was watching
        _end()


def _wait_and_end(descriptor: int) -> None:
    _is_closed(descriptor, milliseconds=None)
    _end()


def _is_closed(descriptor: int, milliseconds: int | None) -> bool:
    """Nothing is ever sent, so anything to read is the end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(milliseconds))


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _start_session() -> None:
    """A session of our own: Ctrl-C reaches the supervisor alone, which forwards it once."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _redirect_output(stdout: Connection, stderr: Connection) -> None:
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)


def _run(spec: WorkerSpec, messages: Connection) -> WorkerEnded | WorkerError:
    try:
        # Blocked since the forkserver started; a pending signal is delivered and handled here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        _set_up_process(spec)
        _send(messages, WorkerStarted(os.getpid()))
        return WorkerEnded(int(find(spec.target)(spec.world, json.loads(spec.payload))))
    except SystemExit as exiting:
        return WorkerEnded(_exit_code(exiting.code))
    except KeyboardInterrupt:
        # Nobody was ready to finish an update: the supervisor must not wait for the others to.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        return WorkerEnded(ExitCode.INTERRUPTED)
    except BaseException as error:
        return _describe_error(error)


def _set_up_process(spec: WorkerSpec) -> None:
    """Environment, cores and threads."""
    os.environ.clear()
    os.environ.update(spec.environment)
    os.environ["OMP_NUM_THREADS"] = str(spec.threads)  # for what is loaded or started later
    bind_to_cores(spec.cores)

    import torch  # loaded already when we come from the forkserver

    torch.set_num_threads(spec.threads)


def find(target: str) -> Target:
    """The function that `module:function` names."""
    module, _, name = target.partition(":")
    function: Target = vars(import_module(module))[name]
    return function


def _exit_code(code: object) -> int:
    """As the interpreter reads the argument of sys.exit."""
    if code is None:
        return ExitCode.DONE
    return code if isinstance(code, int) else ExitCode.BUG


def _describe_error(error: BaseException) -> WorkerError:
    return WorkerError(
        kind=type(error).__name__,
        text=str(error),
        traceback="".join(traceback.format_exception(error)),
        code=error.code if isinstance(error, ConvoyError) else ExitCode.BUG,
        at=time.monotonic(),
    )


def _send(messages: Connection, message: Message) -> None:
    """The whole line; a supervisor that is gone needs no message."""
    line = memoryview(encode_message(message))
    with suppress(BrokenPipeError):
        while line:
            line = line[os.write(messages.fileno(), line) :]
