"""How a run with several workers ended: which worker was the first cause, and what followed."""

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
from convoy.launch.messages import Failed

_ERRORS: dict[int, type[ConvoyError]] = {
    one.code: one
    for one in (
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

# What torch says to the survivors. gloo names its own source file, and no rank.
_PEER_LOST = re.compile(r"gloo/.*(closed by peer|reset by peer|refused|Broken pipe|timeout)", re.S)
_PEER_LATE = re.compile(r"gloo/.*Timed out waiting", re.S)
_PEER_ERRORS = {"DistNetworkError", "DistStoreError"}

_WAY_OUT = (
    "the others were stopped; `convoy resume` goes on from the last checkpoint, if there is one"
)


@dataclass(frozen=True)
class Place:
    """Where a worker stands in the run."""

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
class Trouble:
    """One worker's end that was not in order."""

    place: Place
    text: str  # goes on after the place: "was ended by SIGKILL"
    code: int
    at: float  # seconds of the monotonic clock
    is_consequence: bool = False  # of another worker's trouble
    failed: Failed | None = None  # the error, where there was one

    def __str__(self) -> str:
        return f"{self.place} {self.text}"


def from_elsewhere(kind: str, text: str) -> ExitCode | None:
    """Of an error that another process caused: what became of that one; None for one of our own."""
    if _PEER_LATE.search(text):
        return ExitCode.HANG
    if kind in _PEER_ERRORS or _PEER_LOST.search(text):
        return ExitCode.WORKER_LOST
    return None


def trouble_of(place: Place, failed: Failed) -> Trouble:
    """An error that a worker reported. One about a lost peer has its cause somewhere else."""
    elsewhere = from_elsewhere(failed.kind, failed.text)
    code, is_consequence = elsewhere or failed.code, elsewhere is not None
    text = f"failed: {failed.kind}: {failed.text}"
    return Trouble(place, text, code, failed.at, is_consequence, failed)


@dataclass(frozen=True)
class Outcome:
    """The exit code of the run, and its troubles, the first cause first."""

    code: int
    troubles: tuple[Trouble, ...] = ()

    @property
    def cause(self) -> Trouble | None:
        return self.troubles[0] if self.troubles else None

    def error(self) -> ConvoyError | None:
        """What to raise: a worker's own error keeps its kind and text, a bug its traceback."""
        if self.cause is None:
            return None
        failed = self.cause.failed
        if failed is not None and (failed.code in _ERRORS or failed.kind == "ConvoyError"):
            return _ERRORS.get(failed.code, ConvoyError)(failed.text)
        if self.cause.code in _ERRORS:
            return _ERRORS[self.cause.code](f"{self.cause}; {_WAY_OUT}")
        return ConvoyError("\n".join(self.describe()))

    def describe(self) -> list[str]:
        """All that is known, in lines: the cause with its traceback, then what followed from it."""
        lines: list[str] = []
        for trouble in self.troubles:
            follows = trouble.is_consequence and trouble is not self.cause
            lines.append(f"consequence: {trouble}" if follows else str(trouble))
            if trouble.failed is not None and not follows:
                lines.extend(trouble.failed.traceback.rstrip().splitlines())
        return lines


def in_order(troubles: Iterable[Trouble]) -> tuple[Trouble, ...]:
    """Causes before consequences, and each in the order of time."""
    return tuple(sorted(troubles, key=lambda one: (one.is_consequence, one.at)))
