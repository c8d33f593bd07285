"""What a run reports: plain numbers, handed to observers. Nothing here knows who they are."""

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import MethodType


@dataclass(frozen=True)
class Began:
    """The loop starts, or goes on after a checkpoint."""

    update: int  # updates already done: 0, or the checkpoint's
    updates: int  # updates of the whole run
    updates_per_epoch: int
    samples_per_update: int
    first_epoch: int = 0  # epochs that came before the run


@dataclass(frozen=True)
class Updated:
    """One change of the weights is done. Holds nothing that would make a device wait."""

    update: int  # counts from 1
    seconds: float  # wall time of this update, waiting for data included
    skipped: bool = False  # then nothing but the data moved on


@dataclass(frozen=True)
class Reported:
    """Means over the updates since the last report."""

    update: int
    epoch: float
    loss: float
    accuracy: float  # share of right answers, 0 … 1
    learning_rate: float
    images_per_second: float
    seconds: float  # since the run (or its resumption) began
    loss_scale: float = 1.0
    skipped: int = 0  # updates of the whole run so far that changed nothing
    left_out: int = 0  # micro-batches whose loss is not finite, and in none of the means


@dataclass(frozen=True)
class Validated:
    """Every validation sample was seen exactly once."""

    update: int
    epoch: float
    top1: float
    top5: float
    loss: float
    samples: int
    seconds: float
    images_per_second: float
    average_top1: float | None = None  # of the average that the run takes along, if it does
    average_top5: float | None = None
    average_loss: float | None = None


@dataclass(frozen=True)
class Saved:
    """A checkpoint is complete on disk."""

    update: int
    path: str
    seconds: float


@dataclass(frozen=True)
class Averaged:
    """The weights of a run became one more; measured if the run measures anything."""

    update: int
    path: str
    strategy: str
    checkpoints: int  # how many went into it; 0: those of every update, on the way
    weights_sha256: str
    top1: float | None = None
    top5: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Noticed:
    """Something a person should know: a fallback, a skipped record, a failed save."""

    kind: str  # one word, for programs
    text: str  # one line, for people
    update: int


@dataclass(frozen=True)
class Ended:
    """The loop is over."""

    update: int
    reason: str  # "done", "preempted", "interrupted", "limit", or an error's kind


Event = Began | Updated | Reported | Validated | Saved | Averaged | Noticed | Ended

Observer = Callable[[Event], None]


class Observers:
    """Hands each event to every observer: displays, logs, trackers.

    They only observe: one that fails is reported and dropped, and the run goes on.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = list(observers)

    def notify(self, event: Event) -> None:
        for observer in tuple(self._observers):
            try:
                observer(event)
            except Exception as error:
                self._observers.remove(observer)
                self._report(observer, error, event.update)

    def _report(self, observer: Observer, error: Exception, update: int) -> None:
        name = repr(observer)
        if isinstance(observer, MethodType):
            name = type(observer.__self__).__name__
        text = f"observer {name} failed and gets no more events: {type(error).__name__}: {error}"
        with suppress(OSError, ValueError):  # nobody may be reading
            print(f"convoy: {text}", file=sys.stderr)
        self.notify(Noticed("observer_failed", text, update))


REASONS = ("limit", "preempted", "interrupted")  # the last that anybody has wins


class StopRequest:
    """Set by a signal handler (so it does nothing but remember), read by the loop."""

    def __init__(self) -> None:
        self.reason: str | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether somebody waits for the end; a limit was known from the start."""
        return self.reason not in (None, "limit")

    def ask(self, reason: str) -> None:
        """The first reason stays."""
        assert reason in REASONS
        if self.reason is None:
            self.reason = reason
