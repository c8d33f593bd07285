"""Start the workers of a run on this machine, monitor them, and stop them all.

If a worker fails, the others are stopped; a worker that does not respond is killed, so no process
is left behind. The first failure is distinguished from its consequences.
"""

import math
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from time import monotonic
from typing import Any

from convoy.errors import ERRORS, ConfigError, ConvoyError, ExitCode
from convoy.launch.processes import (
    StartContext,
    WorkerProcess,
    WorkerRank,
    WorkerStatus,
    worker_context,
)
from convoy.launch.worker import (
    FORWARDED_SIGNALS,
    WorkerError,
    WorkerRecord,
    WorkerSpec,
    peer_error_code,
)
from convoy.launch.world import World
from convoy.machine import (
    available_cores,
    check_capacity,
    handle_signals,
    limit_openmp_spinning,
    partition_cores,
)
from convoy.planning.topology import TopologyPlan

_SIGNAL_CODES: dict[int, int] = {
    signal.SIGTERM: ExitCode.PREEMPTED,
    signal.SIGHUP: ExitCode.PREEMPTED,
    signal.SIGINT: ExitCode.INTERRUPTED,
}
_NORMAL_CODES = (ExitCode.DONE, ExitCode.PREEMPTED, ExitCode.INTERRUPTED)
_POLL_SECONDS = 0.1  # between checks of signals and deadlines; worker exits are noticed at once


OnRecord = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class LaunchOptions:
    """Modules and memory of a worker, and timeouts in seconds."""

    preload: tuple[str, ...] = ()  # modules that the target imports late: loaded once for all
    bytes_per_worker: int = 0  # planned memory of the largest stage
    peer_exit_seconds: float = 1.0  # from a report of a lost peer until its exit is noticed
    grace_seconds: float = 5.0  # from SIGTERM to SIGKILL after a failure
    save_seconds: float = 60.0  # from a user's signal to SIGKILL: finish the update and save


@dataclass(frozen=True)
class WorkerFailure:
    """An abnormal end of one worker."""

    rank: WorkerRank
    text: str  # follows the rank: "was killed by SIGKILL"
    code: int
    time: float  # seconds of the monotonic clock
    is_consequence: bool = False  # of another worker's failure
    error: WorkerError | None = None  # the exception, if any

    def __str__(self) -> str:
        return f"{self.rank} {self.text}"

    @classmethod
    def of(cls, rank: WorkerRank, error: WorkerError) -> "WorkerFailure":
        """Create a failure from a reported exception; a lost peer makes it a consequence."""
        peer_code = peer_error_code(error.kind, error.text)
        text = f"failed: {error.kind}: {error.text}"
        return cls(rank, text, peer_code or error.code, error.time, peer_code is not None, error)


@dataclass(frozen=True)
class LaunchResult:
    """The exit code of a run with several workers, and its failures, the cause first."""

    code: int
    failures: tuple[WorkerFailure, ...] = ()

    @property
    def cause(self) -> WorkerFailure | None:
        return self.failures[0] if self.failures else None

    def error(self) -> ConvoyError | None:
        """The error to raise: a worker's error keeps its type and text, a bug its traceback."""
        if self.cause is None:
            return None
        error = self.cause.error
        if error is not None and (error.code in ERRORS or error.kind == "ConvoyError"):
            return ERRORS.get(error.code, ConvoyError)(error.text)
        if self.cause.code in ERRORS:
            return ERRORS[self.cause.code](
                f"{self.cause}; the other workers were stopped; "
                "`convoy resume` continues from the last checkpoint, if there is one"
            )
        return ConvoyError("\n".join(self.describe()))

    def describe(self) -> list[str]:
        """Describe all failures: the cause with its traceback, then the consequences."""
        lines: list[str] = []
        for failure in self.failures:
            follows = failure.is_consequence and failure is not self.cause
            lines.append(f"caused by this failure: {failure}" if follows else str(failure))
            if failure.error is not None and not follows:
                lines.extend(failure.error.traceback.rstrip().splitlines())
        return lines


def causes_first(failures: Iterable[WorkerFailure]) -> tuple[WorkerFailure, ...]:
    """Sort failures: causes before consequences, each by time."""
    return tuple(sorted(failures, key=lambda failure: (failure.is_consequence, failure.time)))


def run_workers(
    topology: TopologyPlan,
    target: str,
    payload: object,
    threads: int,
    options: LaunchOptions = LaunchOptions(),
    on_record: OnRecord = lambda _: None,
) -> LaunchResult:
    """Run `module:function` in one process per rank until all end; see `WorkerSpec`.

    `on_record` is called with everything that a worker publishes.
    """
    world_size = topology.processes
    check_capacity(world_size, options.bytes_per_worker)
    limit_openmp_spinning()
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="convoy-") as folder:
        rendezvous = str(Path(folder) / "rendezvous")
        specs: list[WorkerSpec] = []
        for rank, cores in enumerate(partition_cores(available_cores(), world_size)):
            world = World(rank, world_size, rank, world_size, rendezvous)
            specs.append(WorkerSpec(target, world, payload, threads, cores, environment))
        modules = ["torch", target.partition(":")[0], *options.preload]
        return Supervisor(topology, specs, options, on_record).run(modules)


class Supervisor:
    """Supervise the workers of one run from start to end."""

    def __init__(
        self,
        topology: TopologyPlan,
        specs: Sequence[WorkerSpec],
        options: LaunchOptions,
        on_record: OnRecord,
    ) -> None:
        self.specs = specs
        self.options = options
        self.on_record = on_record
        coordinates = [topology.coordinates(rank) for rank in range(topology.processes)]
        self.workers = [
            WorkerProcess(WorkerRank(rank, coordinate.replica, coordinate.stage))
            for rank, coordinate in enumerate(coordinates)
        ]
        self._failures: list[WorkerFailure] = []
        self._pending_signals: list[int] = []  # signals not yet handled
        self._forwarded_signals: list[int] = []  # signals sent on to the workers
        self._stopped_at: float | None = None  # when the others were stopped after a failure
        self._deadline = math.inf  # workers still running then are killed
        self._is_aborted = False  # by a second interrupt

    def run(self, modules: Sequence[str]) -> LaunchResult:
        """Run until the last worker has ended; `modules` are loaded once for all workers."""
        with handle_signals(
            FORWARDED_SIGNALS, lambda number, _: self._pending_signals.append(number)
        ):
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
                    # An import error in the target ended the forkserver; a worker reports it.
                    context = multiprocessing.get_context("spawn")
                    worker.start(context, spec)
            except OSError as error:
                raise ConfigError(
                    f"worker {spec.world.rank + 1} of {spec.world.world_size} could not be started "
                    f"({error}); lower --replicas or --shards"
                ) from error
            worker.status = WorkerStatus.RUNNING

    def _read_workers(self) -> None:
        """Wait until a worker writes or ends, and process it."""
        handles = [handle for worker in self._running for handle in worker.wait_handles]
        connection.wait(handles, _POLL_SECONDS)
        for worker in self._running:
            is_over = worker.exit_code is not None  # checked before its last messages are read
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
            if isinstance(message, WorkerRecord):
                self.on_record(message.record)
                continue
            worker.last_message = message
            if isinstance(message, WorkerError):
                self._add_worker_failure(WorkerFailure.of(worker.rank, message))

    def _process_end(self, worker: WorkerProcess) -> None:
        message, code = worker.last_message, worker.exit_code
        assert code is not None
        worker.status = WorkerStatus.FAILED
        if isinstance(message, WorkerError) or worker.was_killed:
            return
        if message is not None and message.code in _NORMAL_CODES:
            worker.status, worker.code = WorkerStatus.ENDED, message.code
        elif message is not None:
            self._add_failure(worker, f"exited with code {message.code}", message.code)
        elif -code in self._forwarded_signals:
            # It could not handle the signal yet, so the others cannot finish their update.
            worker.status, worker.code = WorkerStatus.INTERRUPTED, _SIGNAL_CODES[-code]
            self._kill_after(self.options.grace_seconds)
        elif self._stopped_at is None or code != -signal.SIGTERM:
            self._add_failure(worker, _describe_exit(code), ExitCode.WORKER_LOST)

    def _add_failure(self, worker: WorkerProcess, text: str, code: int) -> None:
        self._add_worker_failure(WorkerFailure(worker.rank, text, code, monotonic()))

    def _add_worker_failure(self, failure: WorkerFailure) -> None:
        """Record a failure; any failure after the stop is a consequence."""
        is_late = self._stopped_at is not None and failure.time > self._stopped_at
        self._failures.append(replace(failure, is_consequence=True) if is_late else failure)

    def _forward_signals(self) -> None:
        """Forward each kind of signal once; a second interrupt ends everything at once."""
        while self._pending_signals:
            number = self._pending_signals.pop(0)
            if number not in self._forwarded_signals:
                self._forwarded_signals.append(number)
                self._send_all(number)
                self._kill_after(self.options.save_seconds)
            elif number == signal.SIGINT:
                self._is_aborted = True
                self._kill()

    def _stop_after_failure(self) -> None:
        if self._stopped_at is not None or not self._failures:
            return
        first = causes_first(self._failures)[0]
        if first.is_consequence and monotonic() < first.time + self.options.peer_exit_seconds:
            return  # the cause is not known yet
        self._stopped_at = monotonic()
        self._send_all(signal.SIGTERM)
        self._kill_after(self.options.grace_seconds)

    def _enforce_deadline(self) -> None:
        """Kill workers that did not end in time, which is a failure unless others failed first."""
        if monotonic() < self._deadline:
            return
        is_failure = self._stopped_at is None and not self._with_status(WorkerStatus.INTERRUPTED)
        late_workers = self._running if is_failure else []
        # A stopped worker comes first, because the others wait for it.
        for worker in sorted(late_workers, key=lambda late: not late.is_stopped):
            name = signal.Signals(self._forwarded_signals[0]).name
            stopped = "is stopped (SIGSTOP), " * worker.is_stopped
            seconds = f"{self.options.save_seconds:g} s"
            text = f"{stopped}did not exit within {seconds} of {name} and was killed"
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
        failures = causes_first(self._failures)
        all_handled_signals = not self._with_status(WorkerStatus.INTERRUPTED)
        if failures and (all_handled_signals or not failures[0].is_consequence):
            return LaunchResult(failures[0].code, failures)
        ended = self._with_status(WorkerStatus.ENDED, WorkerStatus.INTERRUPTED)
        first = ended[0]
        mismatch = next((worker for worker in ended if worker.code != first.code), None)
        if mismatch is None:
            return LaunchResult(first.code)
        if self._forwarded_signals:
            return LaunchResult(_SIGNAL_CODES[self._forwarded_signals[0]])
        # Workers agree on how a run ends; otherwise it is a bug.
        text = (
            f"exited with code {first.code}, but {mismatch.rank} exited with code {mismatch.code}"
        )
        failure = WorkerFailure(first.rank, text, ExitCode.BUG, monotonic())
        return LaunchResult(ExitCode.BUG, (failure,))


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code} and printed no error"
    known = {int(number): number.name for number in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"
