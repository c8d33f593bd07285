"""How a run with several workers ended: which failure was the cause, and which ones followed."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from convoy.errors import (
    BusyError,
    CheckpointError,
    ConfigError,
    ConvoyError,
    DataError,
    ExitCode,
    HangError,
    NumericError,
    StorageError,
    WorkerLostError,
)
from convoy.launch.worker import WorkerError

_ERRORS: dict[int, type[ConvoyError]] = {
    error.code: error
    for error in (
        ConfigError,
        DataError,
        CheckpointError,
        NumericError,
        StorageError,
        WorkerLostError,
        HangError,
        BusyError,
    )
}

# What torch reports in the survivors. gloo names its own source file, and no rank.
_PEER_LOST = re.compile(r"gloo/.*(closed by peer|reset by peer|refused|Broken pipe|timeout)", re.S)
_PEER_LATE = re.compile(r"gloo/.*Timed out waiting", re.S)
_PEER_ERRORS = {"DistNetworkError", "DistStoreError"}

_WAY_OUT = (
    "the others were stopped; `convoy resume` goes on from the last checkpoint, if there is one"
)


@dataclass(frozen=True)
class WorkerRank:
    """The rank of a worker, and its replica and stage."""

    rank: int
    replica: int
    stage: int

    @property
    def prefix(self) -> str:
        """Before each line that the worker prints."""
        return f"[replica {self.replica}, stage {self.stage}] "

    def __str__(self) -> str:
        return f"replica {self.replica}, stage {self.stage} (rank {self.rank})"


@dataclass(frozen=True)
class WorkerFailure:
    """One worker's end that was not in order."""

    rank: WorkerRank
    text: str  # follows the rank: "was ended by SIGKILL"
    code: int
    at: float  # seconds of the monotonic clock
    is_consequence: bool = False  # of another worker's failure
    error: WorkerError | None = None  # the exception, if there was one

    def __str__(self) -> str:
        return f"{self.rank} {self.text}"

    @classmethod
    def of(cls, rank: WorkerRank, error: WorkerError) -> "WorkerFailure":
        """A reported exception. One about a lost peer is a consequence."""
        peer_code = code_of_peer(error.kind, error.text)
        text = f"failed: {error.kind}: {error.text}"
        return cls(rank, text, peer_code or error.code, error.at, peer_code is not None, error)


def code_of_peer(kind: str, text: str) -> ExitCode | None:
    """If an error was caused by another process: the exit code for that; None otherwise."""
    if _PEER_LATE.search(text):
        return ExitCode.HANG
    if kind in _PEER_ERRORS or _PEER_LOST.search(text):
        return ExitCode.WORKER_LOST
    return None


@dataclass(frozen=True)
class LaunchResult:
    """The exit code of the run, and its failures, the first cause first."""

    code: int
    failures: tuple[WorkerFailure, ...] = ()

    @property
    def cause(self) -> WorkerFailure | None:
        return self.failures[0] if self.failures else None

    def error(self) -> ConvoyError | None:
        """What to raise: a worker's own error keeps its type and text, a bug its traceback."""
        if self.cause is None:
            return None
        error = self.cause.error
        if error is not None and (error.code in _ERRORS or error.kind == "ConvoyError"):
            return _ERRORS.get(error.code, ConvoyError)(error.text)
        if self.cause.code in _ERRORS:
            return _ERRORS[self.cause.code](f"{self.cause}; {_WAY_OUT}")
        return ConvoyError("\n".join(self.describe()))

    def describe(self) -> list[str]:
        """All that is known, in lines: the cause with its traceback, then the consequences."""
        lines: list[str] = []
        for failure in self.failures:
            follows = failure.is_consequence and failure is not self.cause
            lines.append(f"consequence: {failure}" if follows else str(failure))
            if failure.error is not None and not follows:
                lines.extend(failure.error.traceback.rstrip().splitlines())
        return lines


def in_order(failures: Iterable[WorkerFailure]) -> tuple[WorkerFailure, ...]:
    """Causes before consequences, each by time."""
    return tuple(sorted(failures, key=lambda failure: (failure.is_consequence, failure.at)))
