"""Worker processes as the supervisor sees them: start, output and messages."""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from io import UnsupportedOperation
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import TextIO

from convoy.errors import ConfigError, ExitCode
from convoy.launch.worker import (
    FORWARDED_SIGNALS,
    MAX_MESSAGE_BYTES,
    WorkerEnded,
    WorkerError,
    WorkerMessage,
    WorkerSpec,
    decode_message,
    worker_main,
)

StartContext = ForkServerContext | SpawnContext

_MAX_OUTPUT_LINE = 65_536  # bytes
_READ_BYTES = 65_536
_MAX_FINAL_READS = 32  # a pipe contains at most one read; orphans may write more


def worker_context(modules: Sequence[str]) -> StartContext:
    """Return a forkserver with these modules preloaded, or spawn on systems without one."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    try:
        with _signals_blocked():
            resource_tracker.ensure_running()
        # Python unblocks signals after starting its resource tracker, so block them again.
        with _signals_blocked():
            forkserver.ensure_running()
    except OSError as error:
        folder = tempfile.gettempdir()
        raise ConfigError(
            f"cannot start workers with the temporary folder {folder} ({len(folder)} characters): "
            f"{error}; set TMPDIR to a short, writable path"
        ) from error
    return context


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals in processes started here.

    A signal to the process group (Ctrl-C, `timeout`, a closed terminal) would kill the forkserver,
    and all workers would appear lost. Workers unblock the signals.
    """
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


@contextmanager
def _hidden_main_module() -> Iterator[None]:
    """Keep multiprocessing from running the user's script again in every worker.

    Workers need nothing from it, so it works without `if __name__ == "__main__"`.
    """
    main_module = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main_module


class LineSplitter:
    """Split a stream of bytes into lines; a line longer than the limit is split."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._unfinished = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are now complete, without line ends."""
        *complete, unfinished = (self._unfinished + data).split(b"\n")
        lines = [part for line in complete for part in self._split_long(line)]
        *long_parts, self._unfinished = self._split_long(unfinished)
        return lines + long_parts

    def flush(self) -> list[bytes]:
        """Return an unfinished last line at the end of the stream."""
        line, self._unfinished = self._unfinished, b""
        return [line] if line else []

    def _split_long(self, line: bytes) -> list[bytes]:
        starts = range(0, max(len(line), 1), self.limit)
        return [line[start : start + self.limit] for start in starts]


class PipeReader:
    """Read lines from a pipe without blocking."""

    def __init__(self, pipe: Connection, max_line: int) -> None:
        self.pipe = pipe
        self.is_open = True
        self._lines = LineSplitter(max_line)
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> list[bytes]:
        """Return the lines of one read; at the end of the pipe also an unfinished one."""
        try:
            data = os.read(self.pipe.fileno(), _READ_BYTES) if self.is_open else b""
        except BlockingIOError:
            return []
        if data:
            return self._lines.feed(data)
        self.is_open = False
        return self._lines.flush()

    def read_all(self) -> list[bytes]:
        """Read the remaining output of an exited process; its children may still be writing."""
        reads = [self.read() for _ in range(_MAX_FINAL_READS)]
        return [line for lines in reads for line in lines] + self._lines.flush()


@dataclass(frozen=True)
class WorkerRank:
    """The rank of a worker, and its replica and stage."""

    rank: int
    replica: int
    stage: int

    @property
    def prefix(self) -> str:
        """Prefix of each line that the worker prints; rank 0 has none."""
        return f"[replica {self.replica}, stage {self.stage}] " if self.rank else ""

    def __str__(self) -> str:
        return f"replica {self.replica}, stage {self.stage} (rank {self.rank})"


class WorkerStatus(Enum):
    """Status of a worker, as known to the supervisor."""

    NOT_STARTED = "not started"
    RUNNING = "running"
    ENDED = "ended with a normal exit code"
    INTERRUPTED = "ended by a forwarded signal before it could handle it"
    FAILED = "failed, lost or killed"


class WorkerProcess:
    """One worker process of the run, as the supervisor sees it."""

    def __init__(self, rank: WorkerRank) -> None:
        self.rank = rank
        self.status = WorkerStatus.NOT_STARTED
        self.code: int = ExitCode.DONE  # once ENDED or INTERRUPTED
        self.last_message: WorkerEnded | WorkerError | None = None
        self.was_killed = False
        self._outputs: list[tuple[PipeReader, TextIO]] = []
        self._messages: PipeReader
        self._lifeline: Connection
        self._process: BaseProcess

    def start(self, context: StartContext, spec: WorkerSpec) -> None:
        """Start the worker. Rank 0 prints directly, other ranks through the supervisor."""
        self._outputs = []
        messages, messages_end = multiprocessing.Pipe(duplex=False)
        lifeline_end, self._lifeline = multiprocessing.Pipe(duplex=False)
        outputs = [self._output_to(stream) for stream in (sys.stdout, sys.stderr)]
        pipes = (messages_end, lifeline_end, *outputs)
        self._messages = PipeReader(messages, MAX_MESSAGE_BYTES)
        self._process = context.Process(
            target=worker_main, args=(spec, *pipes), name=str(self.rank)
        )
        try:
            with _hidden_main_module():
                self._process.start()
        finally:  # the worker has its own copies; these would keep the pipes open
            for end in pipes:
                end.close()

    def _output_to(self, stream: TextIO) -> Connection:
        if self.rank.rank == 0:
            with suppress(UnsupportedOperation, ValueError):  # an in-memory stream
                number = stream.fileno()
                stream.flush()
                return Connection(os.dup(number), readable=False)
        reading, writing = multiprocessing.Pipe(duplex=False)
        self._outputs.append((PipeReader(reading, _MAX_OUTPUT_LINE), stream))
        return writing

    @property
    def _readers(self) -> list[PipeReader]:
        return [self._messages, *(reader for reader, _ in self._outputs)]

    @property
    def wait_handles(self) -> list[Connection | int]:
        """Handles that become ready when the worker writes, and when it exits (the last one)."""
        pipes = [reader.pipe for reader in self._readers if reader.is_open]
        return [*pipes, self._process.sentinel]

    @property
    def exit_code(self) -> int | None:
        """None while running; negative: the signal that killed it."""
        return self._process.exitcode

    def forward_output(self) -> None:
        """Print the worker's output; all that is left if it has exited."""
        for reader, stream in self._outputs:
            lines = [line.decode(errors="replace") for line in self._lines(reader)]
            if lines:
                with suppress(BrokenPipeError):  # the reader has exited; the run continues
                    stream.write("".join(f"{self.rank.prefix}{line}\n" for line in lines))
                    stream.flush()

    def read_messages(self) -> list[WorkerMessage]:
        """Read the worker's messages; raise ValueError for anything else."""
        return [decode_message(line) for line in self._lines(self._messages)]

    def _lines(self, reader: PipeReader) -> list[bytes]:
        return reader.read() if self.exit_code is None else reader.read_all()

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped (SIGSTOP), so that it can neither exit nor report."""
        try:
            status = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] == "T"

    def send_signal(self, number: int, send: Callable[[int, int], None] = os.kill) -> None:
        """Send a signal; the process may be gone already."""
        if self.exit_code is None and self._process.pid is not None:
            with suppress(ProcessLookupError):
                send(self._process.pid, number)

    def kill(self) -> None:
        """Kill the worker at once, with its child processes if it has its own session."""
        self.was_killed = True
        self.send_signal(signal.SIGKILL, os.killpg)
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes; closing the lifeline ends the process if it still exists."""
        for reader in self._readers:
            reader.pipe.close()
        self._lifeline.close()
