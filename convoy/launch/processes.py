"""Worker processes as their supervisor sees them: how they start, what they print and report."""

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
from typing import TextIO

from convoy.errors import ConfigError, ExitCode
from convoy.launch.worker import (
    FORWARDED_SIGNALS,
    MAX_MESSAGE_BYTES,
    WorkerMessage,
    WorkerSpec,
    decode_message,
    worker_main,
)

StartContext = ForkServerContext | SpawnContext

_MAX_OUTPUT_LINE = 65_536  # bytes
_READ_BYTES = 65_536
_READS_AT_END = 32  # a pipe holds one read; more comes only from processes left behind


def worker_context(modules: Sequence[str]) -> StartContext:
    """A forkserver with these modules loaded, or spawn on systems without one."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    try:
        with _signals_blocked():
            resource_tracker.ensure_running()
        # Python unblocks signals once it has started its tracker, so they are blocked again.
        with _signals_blocked():
            forkserver.ensure_running()
    except OSError as error:
        folder = tempfile.gettempdir()
        raise ConfigError(
            f"workers cannot be started with {folder} ({len(folder)} characters) as the folder for "
            f"temporary files: {error}; set TMPDIR to a short path that can be written to"
        ) from error
    return context


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """What starts here never sees a signal to the whole group (Ctrl-C, `timeout`, a closed
    terminal): it would die, and all workers would seem lost. Workers unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class LineSplitter:
    """Bytes in pieces → whole lines; a line longer than the limit is cut."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._unfinished = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        self._unfinished += data
        *whole, rest = bytes(self._unfinished).split(b"\n")
        lines = [piece for line in whole for piece in self._cut(line)]
        *cut, last = self._cut(rest)
        self._unfinished = bytearray(last)
        return lines + cut

    def rest(self) -> list[bytes]:
        """An unfinished last line, when nothing follows any more."""
        left, self._unfinished = bytes(self._unfinished), bytearray()
        return [left] if left else []

    def _cut(self, line: bytes) -> list[bytes]:
        starts = range(0, max(len(line), 1), self.limit)
        return [line[start : start + self.limit] for start in starts]


class PipeReader:
    """The reading end of a pipe: the lines that have arrived; never waits."""

    def __init__(self, pipe: Connection, max_line: int) -> None:
        self.pipe = pipe
        self.is_open = True
        self._lines = LineSplitter(max_line)
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> list[bytes]:
        """The lines of one read; at the end of the pipe also an unfinished one."""
        try:
            data = os.read(self.pipe.fileno(), _READ_BYTES) if self.is_open else b""
        except BlockingIOError:
            return []
        if data:
            return self._lines.feed(data)
        self.is_open = False
        return self._lines.rest()

    def read_all(self) -> list[bytes]:
        """All that is left of a process that is over; a child of its own may still be writing."""
        reads = [self.read() for _ in range(_READS_AT_END)]
        return [line for lines in reads for line in lines] + self._lines.rest()


@dataclass(frozen=True)
class WorkerRank:
    """The rank of a worker, and its replica and stage."""

    rank: int
    replica: int
    stage: int

    @property
    def prefix(self) -> str:
        """Before each line that the worker prints; rank 0 prints as if it were alone."""
        return f"[replica {self.replica}, stage {self.stage}] " if self.rank else ""

    def __str__(self) -> str:
        return f"replica {self.replica}, stage {self.stage} (rank {self.rank})"


class WorkerStatus(Enum):
    """What the supervisor knows of a worker."""

    NOT_STARTED = "not started"
    RUNNING = "running"
    ENDED = "ended with a code that all may agree on"
    INTERRUPTED = "ended by a forwarded signal before it could handle it"
    FAILED = "failed, lost or killed"


class WorkerProcess:
    """One process of the run, as its supervisor sees it."""

    def __init__(self, rank: WorkerRank) -> None:
        self.rank = rank
        self.status = WorkerStatus.NOT_STARTED
        self.code: int = ExitCode.DONE  # once ENDED or INTERRUPTED
        self.reported: WorkerMessage | None = None
        self.was_killed = False
        self._outputs: list[tuple[PipeReader, TextIO]] = []
        self._messages: PipeReader
        self._lifeline: Connection
        self._process: BaseProcess

    def start(self, context: StartContext, spec: WorkerSpec) -> None:
        """Rank 0 prints straight to our streams, the others through us, line by line."""
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
            self._process.start()
        finally:  # the worker has copies of its own; ours would keep the pipes open
            for end in pipes:
                end.close()

    def _output_to(self, stream: TextIO) -> Connection:
        if self.rank.rank == 0:
            with suppress(UnsupportedOperation, ValueError):  # a stream that is in memory only
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
    def sources(self) -> list[Connection | int]:
        """One of these becomes ready when the worker writes; the last one when it ends."""
        pipes = [reader.pipe for reader in self._readers if reader.is_open]
        return [*pipes, self._process.sentinel]

    @property
    def exit_code(self) -> int | None:
        """Negative: the signal that ended it. None: it is running."""
        return self._process.exitcode

    def forward_output(self) -> None:
        """Print what it printed; all of it when it is over."""
        for reader, stream in self._outputs:
            lines = [line.decode(errors="replace") for line in self._lines(reader)]
            if lines:
                with suppress(BrokenPipeError):  # our own reader has gone; the run continues
                    stream.write("".join(f"{self.rank.prefix}{line}\n" for line in lines))
                    stream.flush()

    def read_messages(self) -> list[WorkerMessage]:
        """What it reported; ValueError for anything that is not a message."""
        return [decode_message(line) for line in self._lines(self._messages)]

    def _lines(self, reader: PipeReader) -> list[bytes]:
        return reader.read() if self.exit_code is None else reader.read_all()

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped it (SIGSTOP): it can neither end nor report."""
        try:
            status = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] == "T"

    def send_signal(self, number: int, send: Callable[[int, int], None] = os.kill) -> None:
        """To a process that may be gone already."""
        if self.exit_code is None and self._process.pid is not None:
            with suppress(ProcessLookupError):
                send(self._process.pid, number)

    def kill(self) -> None:
        """At once, with the processes it started itself once it has a session of its own."""
        self.was_killed = True
        self.send_signal(signal.SIGKILL, os.killpg)
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes, the lifeline too: if anything is left of it, it ends now."""
        for reader in self._readers:
            reader.pipe.close()
        self._lifeline.close()
