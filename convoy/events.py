"""The events of a run: plain values, passed to observers. This module knows no observer."""

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import MethodType
from typing import Any, get_args


@dataclass(frozen=True)
class Began:
    """The loop starts, or continues after a checkpoint."""

    update: int  # updates already done: 0, or the checkpoint's
    updates: int  # of the whole run
    updates_per_epoch: int
    samples_per_update: int
    first_epoch: int = 0  # epochs completed before this run


@dataclass(frozen=True)
class Updated:
    """One optimizer step is done. Has no values that would require a device synchronization."""

    update: int  # counts from 1
    seconds: float  # wall time of this update, waiting for data included
    skipped: bool = False  # if so, only the data position advanced


@dataclass(frozen=True)
class Reported:
    """Metrics averaged over the updates since the last report."""

    update: int
    epoch: float
    loss: float
    accuracy: float  # fraction of correct predictions, 0 … 1
    learning_rate: float
    images_per_second: float
    seconds: float  # since the run started or was resumed
    loss_scale: float = 1.0
    skipped: int = 0  # skipped updates since the start of the run
    left_out: int = 0  # micro-batches with a non-finite loss, excluded from the means


@dataclass(frozen=True)
class Validated:
    """A validation is done; every sample was evaluated exactly once."""

    update: int
    epoch: float
    top1: float
    top5: float
    loss: float
    samples: int
    seconds: float
    images_per_second: float
    average_top1: float | None = None  # of the EMA weights, if the run has them
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
    """Averaged weights are saved; validated if the run validates."""

    update: int
    path: str
    strategy: str
    checkpoints: int  # number of averaged checkpoints; 0: an EMA over every update
    weights_sha256: str
    top1: float | None = None
    top5: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Noticed:
    """A notice for the user: a fallback, a skipped record, a failed save."""

    kind: str  # one word, machine-readable
    text: str  # one line, human-readable
    update: int


@dataclass(frozen=True)
class Ended:
    """The loop is over."""

    update: int
    reason: str  # "done", "preempted", "interrupted", "limit", or an error's kind


Event = Began | Updated | Reported | Validated | Saved | Averaged | Noticed | Ended

Observer = Callable[[Event], None]

_EVENT_TYPES: dict[str, type[Event]] = {event.__name__: event for event in get_args(Event)}


def event_to_json(event: Event) -> dict[str, Any]:
    """The fields of an event and the name of its class, as JSON values."""
    return {"event": type(event).__name__, **asdict(event)}


def event_from_json(record: dict[str, Any]) -> Event:
    """Convert a record back to an event; the inverse of `event_to_json`."""
    values = dict(record)
    return _EVENT_TYPES[values.pop("event")](**values)


class Observers:
    """Pass each event to every observer: displays, logs, trackers.

    An observer that raises is reported and removed, and the run continues.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = list(observers)

    def notify(self, event: Event) -> None:
        for observer in tuple(self._observers):
            try:
                observer(event)
            except Exception as error:
                # the same function may be there twice, and another event may have removed it
                self._observers = [item for item in self._observers if item is not observer]
                self._report(observer, error, event.update)

    def _report(self, observer: Observer, error: Exception, update: int) -> None:
        name = repr(observer)
        if isinstance(observer, MethodType):
            name = type(observer.__self__).__name__
        reason = f"{type(error).__name__}: {error}"
        text = f"observer {name} failed and receives no more events: {reason}"
        with suppress(OSError, ValueError):  # stderr may be closed
            print(f"convoy: {text}", file=sys.stderr)
        self.notify(Noticed("observer_failed", text, update))


STOP_REASONS = ("limit", "preempted", "interrupted")  # by increasing priority across ranks


@dataclass
class StopRequest:
    """A stop reason, set by a signal handler and read by the training loop."""

    reason: str | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether someone is waiting for the run to end; a limit is never urgent."""
        return self.reason not in (None, "limit")

    def request(self, reason: str) -> None:
        """Request a stop; the first reason wins."""
        assert reason in STOP_REASONS
        if self.reason is None:
            self.reason = reason
