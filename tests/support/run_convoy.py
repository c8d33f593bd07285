"""Run convoy in this process, or in a separate one that can be killed.

Processes come from a forkserver that has already imported torch, so that one starts in a tenth of
a second instead of three seconds.
"""

import io
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from convoy.cli.args import ParsedCommand, add_config_arguments, make_parser, parse_run_command
from convoy.cli.main import main
from convoy.launch.worker import FORWARDED_SIGNALS

# A very small training run: 12 updates of 2 × 8 images in two epochs, under a second.
TINY = [
    "--model=resnet8",
    "--data=shapes",
    "--image-size=12",
    "--samples=96",
    "--micro-batch-size=8",
    "--gradient-accumulation=2",
    "--epoch=2",
    "--lr=0.02",
    "--threads=1",
    "--progress=plain",
    "--dataloader-worker=0",
    "--validation-mode=none",
]

# A timeout in seconds, far longer than any test takes on a busy machine.
PATIENCE = 600.0
ENDLESS = "--updates=1000000"  # for runs that the test stops

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["convoy.run.fine_tuning", "convoy.run.averaging"])


@dataclass(frozen=True)
class CommandResult:
    """What a command printed and returned."""

    code: int
    out: str
    err: str


def convoy(*words: str | Path) -> CommandResult:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return CommandResult(code, out.getvalue(), err.getvalue())


def parse_plan_command(words: list[str]) -> ParsedCommand:
    """Parse a command line of a verb that takes the options of a run."""
    parser = make_parser("plan", "")
    add_config_arguments(parser)
    return parse_run_command(parser, words)


@dataclass
class SlowFileOperations:
    """An audit hook that delays file operations by a second, so that a test can send a signal.

    `event` is an audit event of Python, such as os.rename. It counts if its first argument, usually
    a path, contains `substring`.
    """

    event: str
    substring: str
    num_fast: int  # operations that are not delayed

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if event == self.event and self.substring in str(args[0]):
            self.num_fast -= 1
            if self.num_fast < 0:
                time.sleep(1)


class Process:
    """A command in a separate process."""

    def __init__(
        self,
        words: list[str | Path],
        scratch: Path,
        env: Mapping[str, str] | None = None,
        slowed: SlowFileOperations | None = None,
    ) -> None:
        self._out, self._err = scratch / "out.txt", scratch / "err.txt"
        self._process = _CONTEXT.Process(
            target=_child,
            args=([str(word) for word in words], self._out, self._err, dict(env or {}), slowed),
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def send(self, number: int) -> None:
        """Send a signal; the process may have ended already."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float = PATIENCE) -> CommandResult:
        """The exit code is negative if a signal ended the process, as in subprocess."""
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            raise TimeoutError(f"still running after {seconds} s: {self._err.read_text()}")
        code = self._process.exitcode
        assert code is not None
        return CommandResult(code, self._out.read_text(), self._err.read_text())


def convoy_process(
    *words: str | Path, scratch: Path, env: Mapping[str, str] | None = None
) -> CommandResult:
    """Run a command in a separate process and wait for its end."""
    return Process(list(words), scratch, env).wait()


def _child(
    words: list[str], out: Path, err: Path, env: dict[str, str], slowed: SlowFileOperations | None
) -> None:
    os.environ.update(env)
    tempfile.tempdir = None  # the forkserver may have cached it
    if slowed is not None:
        sys.addaudithook(slowed)
    # The forkserver blocks these signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
    for path, descriptor in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, descriptor)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    code = main(words)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)  # the command has ended
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for another process or thread."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)
