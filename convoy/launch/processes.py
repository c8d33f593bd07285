"""The supervisor's side of one worker: starts it, hears what it says, ends it.

Workers come from a forkserver that has torch and the target loaded: a tenth of a second each,
instead of the two to four that loading torch takes.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

from convoy.errors import ConfigError
from convoy.launch.lines import Lines
from convoy.launch.messages import LONGEST_LINE, Message, decode
from convoy.launch.outcome import Place
from convoy.launch.worker import PASSED_ON, Ends, Order, work

Context = ForkServerContext | SpawnContext

_LONGEST_OUTPUT = 65_536  # bytes of one printed line
_PIECE = 65_536
_PIECES_LEFT = 32  # a pipe holds one piece; more comes only from processes left behind


def nursery(modules: Sequence[str]) -> Context:
    """Where workers are made: with these modules loaded, where the system can do that."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    try:
        with _signals_held_back():
            resource_tracker.ensure_running()
        # Python lets signals through again once it has started its tracker, so they are held anew.
        with _signals_held_back():
            forkserver.ensure_running()
    except OSError as error:
        raise ConfigError(_no_place(error)) from error
    return context


def _no_place(error: OSError) -> str:
    folder = tempfile.gettempdir()
    return (
        f"workers cannot be started with {folder} ({len(folder)} characters) as the folder for "
        f"temporary files: {error}; set TMPDIR to a short path that can be written to"
    )


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """What starts here never sees a signal to the whole group (Ctrl-C, `timeout`, a closed
    terminal): it would die, and all workers would seem lost. Workers let them through again."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Inflow:
    """The reading end of a pipe: whole lines, as far as they have come; never waits."""

    def __init__(self, pipe: Connection, longest: int) -> None:
        self.pipe = pipe
        self.is_open = True
        self._lines = Lines(longest)
        os.set_blocking(pipe.fileno(), False)

    def take(self) -> list[bytes]:
        """What one look brings; at its end also a line that nobody ended."""
        try:
            data = os.read(self.pipe.fileno(), _PIECE) if self.is_open else b""
        except BlockingIOError:
            return []
        if data:
            return self._lines.feed(data)
        self.is_open = False
        return self._lines.rest()

    def take_all(self) -> list[bytes]:
        """All that is left of a process that is over; a child of its own may still be talking."""
        pieces = [self.take() for _ in range(_PIECES_LEFT)]
        return [line for piece in pieces for line in piece] + self._lines.rest()


class Voice:
    """Lines that one worker prints, on their way to one of our own streams."""

    def __init__(self, inflow: Inflow, stream: TextIO, prefix: str) -> None:
        self.inflow = inflow
        self.stream = stream
        self.prefix = prefix

    def pass_on(self, lines: list[bytes]) -> None:
        if not lines:
            return
        text = "".join(f"{self.prefix}{line.decode(errors='replace')}\n" for line in lines)
        with suppress(BrokenPipeError):  # our own reader has gone; the run goes on
            self.stream.write(text)
            self.stream.flush()


class Worker:
    """One process of the run, as its supervisor sees it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.voices: list[Voice] = []
        self.report: Inflow
        self._lifeline: Connection
        self._process: BaseProcess

    def start(self, context: Context, order: Order) -> None:
        """Rank 0 prints straight to our streams, the others through us, line by line."""
        self.voices = []
        report, report_end = multiprocessing.Pipe(duplex=False)
        lifeline_end, self._lifeline = multiprocessing.Pipe(duplex=False)
        ends = Ends(report_end, lifeline_end, self._way_to(sys.stdout), self._way_to(sys.stderr))
        self.report = Inflow(report, LONGEST_LINE)
        self._process = context.Process(
            target=work, args=(order.to_json(), ends), name=str(self.place)
        )
        try:
            self._process.start()
        finally:  # the worker has copies of its own; ours would keep the pipes open
            for end in (ends.report, ends.lifeline, ends.out, ends.err):
                end.close()

    def _way_to(self, stream: TextIO) -> Connection:
        first = self.place.rank == 0
        number = _descriptor(stream) if first else None
        if number is not None:
            stream.flush()
            return Connection(os.dup(number), readable=False)
        reading, writing = multiprocessing.Pipe(duplex=False)
        prefix = "" if first else self.place.prefix
        self.voices.append(Voice(Inflow(reading, _LONGEST_OUTPUT), stream, prefix))
        return writing

    @property
    def sources(self) -> list[Connection | int]:
        """Whatever of these is ready has news of this worker; the last one of its end."""
        inflows = [self.report, *(voice.inflow for voice in self.voices)]
        return [*(one.pipe for one in inflows if one.is_open), self._process.sentinel]

    @property
    def exit_code(self) -> int | None:
        """Negative: the signal that ended it. None: it is running."""
        return self._process.exitcode

    def speak(self) -> None:
        """Pass on what it printed; all of it when it is over."""
        is_over = self.exit_code is not None
        for voice in self.voices:
            voice.pass_on(voice.inflow.take_all() if is_over else voice.inflow.take())

    def messages(self) -> list[Message]:
        """What it reported; ValueError for anything that is not a message."""
        is_over = self.exit_code is not None
        lines = self.report.take_all() if is_over else self.report.take()
        return [decode(line) for line in lines]

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has halted it (SIGSTOP): it can neither end nor say so."""
        try:
            status = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] == "T"

    def send(self, number: int) -> None:
        """A signal, to a process that may be gone already."""
        if self.exit_code is None and self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def kill(self) -> None:
        """At once, with the processes it started itself."""
        if self.exit_code is None and self._process.pid is not None:
            with suppress(ProcessLookupError):  # it has no session of its own yet
                os.killpg(self._process.pid, signal.SIGKILL)
            self.send(signal.SIGKILL)

    def let_go(self) -> None:
        """Cut the lifeline: if anything is left of it, it ends now."""
        for inflow in (self.report, *(voice.inflow for voice in self.voices)):
            inflow.pipe.close()
        self._lifeline.close()


def _descriptor(stream: TextIO) -> int | None:
    """None for a stream that lives in memory only."""
    try:
        return stream.fileno()
    except (UnsupportedOperation, ValueError):
        return None
