"""Starts the workers of a run on this machine, watches them, and brings them all to an end.

Nothing hangs and nothing stays behind: when one worker fails the others are stopped, a worker
that does not respond is killed, and the first cause is separated from its consequences.
"""

import json
import math
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from time import monotonic

from convoy.errors import ERRORS, ConfigError, ConvoyError, ExitCode
from convoy.launch.processes import (
    StartContext,
    WorkerProcess,
    WorkerRank,
    WorkerStatus,
    worker_context,
)
from convoy.launch.worker import FORWARDED_SIGNALS, WorkerError, WorkerSpec, code_of_peer
from convoy.launch.world import World
from convoy.machine import (
    available_cores,
    check_capacity,
    handle_signals,
    limit_openmp_spinning,
    share_cores,
)
from convoy.plan.topology import TopologyPlan

_SIGNAL_CODES: dict[int, int] = {
    signal.SIGTERM: ExitCode.PREEMPTED,
    signal.SIGHUP: ExitCode.PREEMPTED,
    signal.SIGINT: ExitCode.INTERRUPTED,
}
_NORMAL_CODES = (ExitCode.DONE, ExitCode.PREEMPTED, ExitCode.INTERRUPTED)
_TICK = 0.1  # seconds between two looks at signals and clocks; ends of workers are seen at once


@dataclass(frozen=True)
class Limits:
    """Memory of a worker, and how long things may take, in seconds."""

    bytes_each: int = 0  # memory of the largest stage, as planned
    settle: float = 1.0  # after a lost peer was reported: how long its own end may take to be seen
    grace: float = 5.0  # from SIGTERM to SIGKILL once a worker failed
    saving: float = 60.0  # from a signal of the user to SIGKILL: the update is finished and saved


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


@dataclass(frozen=True)
class LaunchResult:
    """How a run with several workers ended: its exit code, and its failures, the cause first."""

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
        if error is not None and (error.code in ERRORS or error.kind == "ConvoyError"):
            return ERRORS.get(error.code, ConvoyError)(error.text)
        if self.cause.code in ERRORS:
            return ERRORS[self.cause.code](
                f"{self.cause}; the others were stopped; "
                "`convoy resume` goes on from the last checkpoint, if there is one"
            )
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


def run_workers(
    topology: TopologyPlan,
    target: str,
    payload: Mapping[str, object],
    threads: int,
    limits: Limits = Limits(),
    preload: tuple[str, ...] = (),
) -> LaunchResult:
    """One process for each rank runs `module:function` to its end; see `WorkerSpec`.

    What a target imports late should be named in `preload`: it is then loaded once for all.
    """
    size = topology.processes
    check_capacity(size, limits.bytes_each)
    limit_openmp_spinning()
    text, environment = json.dumps(payload), dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="convoy-") as folder:
        rendezvous = str(Path(folder) / "rendezvous")
        specs = [
            WorkerSpec(
                target, World(rank, size, rank, size, rendezvous), text, threads, cores, environment
            )
            for rank, cores in enumerate(share_cores(available_cores(), size))
        ]
        modules = ["torch", target.partition(":")[0], *preload]
        return Supervisor(topology, specs, limits).run(modules)


class Supervisor:
    """The workers of one run, from their start to their end."""

    def __init__(self, topology: TopologyPlan, specs: Sequence[WorkerSpec], limits: Limits) -> None:
        self.specs = specs
        self.limits = limits
        coordinates = [topology.coordinates(rank) for rank in range(topology.processes)]
        self.workers = [
            WorkerProcess(WorkerRank(rank, at.replica, at.stage))
            for rank, at in enumerate(coordinates)
        ]
        self._failures: list[WorkerFailure] = []
        self._arrived: list[int] = []  # signals not yet handled
        self._forwarded: list[int] = []  # signals that were sent on to the workers
        self._stopped_at: float | None = None  # when the others were told to stop after a failure
        self._deadline = math.inf  # then whoever still runs is killed
        self._is_aborted = False  # by a second interrupt

    def run(self, modules: Sequence[str]) -> LaunchResult:
        """Until the last worker is gone; `modules` are loaded once for all."""
        with handle_signals(FORWARDED_SIGNALS, lambda number, _: self._arrived.append(number)):
            try:
                self._start(worker_context(modules))
                while self._running:
                    self._read_workers()
                    self._forward_signals()
                    self._stop_after_failure()
                    self._enforce_deadline()
            finally:
                self._kill()
                for worker in self.workers:
                    if worker.status is not WorkerStatus.NOT_STARTED:
                        worker.close()
        return self._result()

    @property
    def _running(self) -> list[WorkerProcess]:
        return self._with_status(WorkerStatus.RUNNING)

    def _with_status(self, *statuses: WorkerStatus) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.status in statuses]

    def _start(self, context: StartContext) -> None:
        for worker, spec in zip(self.workers, self.specs, strict=True):
            try:
                try:
                    worker.start(context, spec)
                except (EOFError, ConnectionError):
                    # A target that cannot be loaded has ended the forkserver; a worker reports why.
                    context = multiprocessing.get_context("spawn")
                    worker.start(context, spec)
            except OSError as error:
                raise ConfigError(
                    f"worker {spec.world.rank + 1} of {spec.world.size} could not be started "
                    f"({error}); lower --replicas or --shards"
                ) from error
            worker.status = WorkerStatus.RUNNING

    def _read_workers(self) -> None:
        """Wait until a worker writes or ends, and process that."""
        sources = [source for worker in self._running for source in worker.sources]
        connection.wait(sources, _TICK)
        for worker in self._running:
            is_over = worker.exit_code is not None  # asked first: its last messages are not lost
            worker.forward_output()
            self._read_messages(worker)
            if is_over:
                self._process_end(worker)

    def _read_messages(self, worker: WorkerProcess) -> None:
        try:
            messages = worker.read_messages()
        except ValueError as error:
            self._add_failure(worker, f"sent an invalid message: {error}", ExitCode.BUG)
            return
        for message in messages:
            worker.reported = message
            if isinstance(message, WorkerError):
                self._add(WorkerFailure.of(worker.rank, message))

    def _process_end(self, worker: WorkerProcess) -> None:
        reported, code = worker.reported, worker.exit_code
        assert code is not None
        worker.status = WorkerStatus.FAILED
        if isinstance(reported, WorkerError) or worker.was_killed:
            return
        if reported is not None and reported.code in _NORMAL_CODES:
            worker.status, worker.code = WorkerStatus.ENDED, reported.code
        elif reported is not None:
            self._add_failure(worker, f"ended with code {reported.code}", reported.code)
        elif -code in self._forwarded:
            # It could not handle the signal yet, so the others cannot finish their update either.
            worker.status, worker.code = WorkerStatus.INTERRUPTED, _SIGNAL_CODES[-code]
            self._kill_after(self.limits.grace)
        elif self._stopped_at is None or code != -signal.SIGTERM:
            self._add_failure(worker, _exit_text(code), ExitCode.WORKER_LOST)

    def _add_failure(self, worker: WorkerProcess, text: str, code: int) -> None:
        self._add(WorkerFailure(worker.rank, text, code, monotonic()))

    def _add(self, failure: WorkerFailure) -> None:
        """What happens after the others were told to stop is a consequence."""
        is_late = self._stopped_at is not None and failure.at > self._stopped_at
        self._failures.append(replace(failure, is_consequence=True) if is_late else failure)

    def _forward_signals(self) -> None:
        """Forward each kind of signal once; a second interrupt ends everything at once."""
        while self._arrived:
            number = self._arrived.pop(0)
            if number not in self._forwarded:
                self._forwarded.append(number)
                self._send_all(number)
                self._kill_after(self.limits.saving)
            elif number == signal.SIGINT:
                self._is_aborted = True
                self._kill()

    def _stop_after_failure(self) -> None:
        if self._stopped_at is not None or not self._failures:
            return
        first = in_order(self._failures)[0]
        if first.is_consequence and monotonic() < first.at + self.limits.settle:
            return  # its cause has not been seen yet
        self._stopped_at = monotonic()
        self._send_all(signal.SIGTERM)
        self._kill_after(self.limits.grace)

    def _enforce_deadline(self) -> None:
        """Kill who has not ended by now; a failure of its own unless the others failed first."""
        if monotonic() < self._deadline:
            return
        is_failure = self._stopped_at is None and not self._with_status(WorkerStatus.INTERRUPTED)
        late = self._running if is_failure else []
        for worker in sorted(late, key=lambda one: not one.is_stopped):  # the others wait for it
            name = signal.Signals(self._forwarded[0]).name
            stopped = "is stopped (SIGSTOP), " * worker.is_stopped
            text = f"{stopped}did not end within {self.limits.saving:g} s of {name} and was killed"
            self._add_failure(worker, text, ExitCode.HANG)
        self._kill()

    def _send_all(self, number: int) -> None:
        for worker in self._running:
            worker.send_signal(number)

    def _kill_after(self, seconds: float) -> None:
        self._deadline = min(self._deadline, monotonic() + seconds)

    def _kill(self) -> None:
        for worker in self._running:
            worker.kill()
        self._deadline = math.inf

    def _result(self) -> LaunchResult:
        if self._is_aborted:
            return LaunchResult(ExitCode.INTERRUPTED)
        failures = in_order(self._failures)
        was_ready = not self._with_status(WorkerStatus.INTERRUPTED)
        if failures and (was_ready or not failures[0].is_consequence):
            return LaunchResult(failures[0].code, failures)
        ended = self._with_status(WorkerStatus.ENDED, WorkerStatus.INTERRUPTED)
        first, other = ended[0], next((one for one in ended if one.code != ended[0].code), None)
        if other is None:
            return LaunchResult(first.code)
        if self._forwarded:
            return LaunchResult(_SIGNAL_CODES[self._forwarded[0]])
        # Workers agree on how a run ends; if they do not, it is a bug.
        text = f"ended with code {first.code}, but {other.rank} with {other.code}"
        failure = WorkerFailure(first.rank, text, ExitCode.BUG, monotonic())
        return LaunchResult(ExitCode.BUG, (failure,))


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exited with code {code} and printed no error"
    known = {int(number): number.name for number in signal.Signals}
    return f"was ended by {known.get(-code, f'signal {-code}')}"
