"""Starts the workers of a run on this machine, watches them, and brings them all to an end.

Nothing hangs and nothing stays behind: when one worker fails the others are stopped, a worker that
does not listen is killed, and the first cause is told apart from what followed from it.
"""

import json
import math
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from types import FrameType

from convoy.errors import ConfigError, ExitCode
from convoy.launch.capacity import refuse_too_many
from convoy.launch.cores import available_cores, share_cores
from convoy.launch.messages import Ended, Failed
from convoy.launch.outcome import Outcome, Place, Trouble, in_order, trouble_of
from convoy.launch.processes import Context, Worker, nursery
from convoy.launch.waiting import wait_briefly
from convoy.launch.worker import PASSED_ON, Order
from convoy.launch.world import World
from convoy.plan.topology import TopologyPlan

_CODES: dict[int, int] = {
    signal.SIGTERM: ExitCode.PREEMPTED,
    signal.SIGHUP: ExitCode.PREEMPTED,
    signal.SIGINT: ExitCode.INTERRUPTED,
}
_CALM = (ExitCode.DONE, ExitCode.PREEMPTED, ExitCode.INTERRUPTED)
_TICK = 0.1  # seconds between two looks at signals and clocks; ends of workers are heard at once


@dataclass(frozen=True)
class Limits:
    """How much there may be of everything. Times in seconds."""

    bytes_each: int = 0  # memory of the largest stage, as planned
    force: bool = False  # start even if the machine looks too small
    settle: float = 1.0  # a lost peer was reported: how long its own end may take to be heard
    grace: float = 5.0  # from SIGTERM to SIGKILL once a worker failed
    saving: float = 60.0  # from a signal of the user to SIGKILL: the update is finished and saved


def run_workers(
    topology: TopologyPlan,
    target: str,
    payload: Mapping[str, object],
    threads: int,
    limits: Limits | None = None,
    preload: tuple[str, ...] = (),
) -> Outcome:
    """One process for each rank runs `module:function` to its end; see `worker.Target`.

    What a target imports late should be named in `preload`: it is then loaded once for all.
    """
    limits = limits or Limits()
    refuse_too_many(topology.processes, limits.bytes_each, limits.force)
    wait_briefly()
    with tempfile.TemporaryDirectory(prefix="convoy-") as folder:
        meeting = str(Path(folder) / "meeting")
        task = Task(target, json.dumps(payload), threads, meeting, preload)
        return Supervisor(topology, task, limits).run()


@dataclass(frozen=True)
class Task:
    """What all workers share."""

    target: str
    payload: str
    threads: int
    meeting: str
    preload: tuple[str, ...] = ()


class Supervisor:
    """The workers of one run, from their start to their end."""

    def __init__(self, topology: TopologyPlan, task: Task, limits: Limits) -> None:
        self.task = task
        self.limits = limits
        coordinates = [topology.coordinates(rank) for rank in range(topology.processes)]
        places = [Place(rank, one.replica, one.stage) for rank, one in enumerate(coordinates)]
        self.workers = [Worker(place) for place in places]
        self._started: list[Worker] = []
        self._running: list[Worker] = []
        self._ended: dict[Place, int] = {}  # exit codes of those that ended calmly
        self._told: dict[Place, Ended | Failed] = {}
        self._troubles: list[Trouble] = []
        self._arrived: list[int] = []  # signals that nobody has looked at yet
        self._passed: list[int] = []  # signals that went on to the workers
        self._stopped: float | None = None  # when the others were told to stop after a failure
        self._deadline = math.inf
        self._killed: set[Place] = set()
        self._is_cut_short = False  # by a second interrupt
        self._is_unready = False  # a signal met a worker that could not save yet

    def run(self) -> Outcome:
        """Until the last worker is gone."""
        with _signals_into(self._arrived):
            try:
                self._start()
                while self._running:
                    self._listen()
                    self._obey()
                    self._stop_after_a_failure()
                    self._enforce()
            finally:
                self._kill()
                for worker in self._started:
                    worker.let_go()
        return self._outcome()

    def _start(self) -> None:
        context = nursery(["torch", self.task.target.partition(":")[0], *self.task.preload])
        size = len(self.workers)
        for worker, cores in zip(self.workers, share_cores(available_cores(), size), strict=True):
            rank = worker.place.rank
            world = World(rank, size, rank, size, self.task.meeting)
            context = _start_one(worker, context, self._order(world, cores))
            self._started.append(worker)
            self._running.append(worker)

    def _order(self, world: World, cores: tuple[int, ...]) -> Order:
        task = self.task
        return Order(
            task.target, world, task.payload, task.threads, cores, environment=dict(os.environ)
        )

    def _listen(self) -> None:
        """Wait for news, and take it in."""
        connection.wait([one for worker in self._running for one in worker.sources], _TICK)
        for worker in list(self._running):
            is_over = worker.exit_code is not None  # asked first: what it said last is not lost
            worker.speak()
            self._hear(worker)
            if is_over:
                self._running.remove(worker)
                self._note_the_end(worker)

    def _hear(self, worker: Worker) -> None:
        try:
            messages = worker.messages()
        except ValueError as error:
            self._add(Trouble(worker.place, f"reported nonsense: {error}", ExitCode.BUG, _now()))
            return
        for message in messages:
            if isinstance(message, Failed):
                self._add(trouble_of(worker.place, message))
            if isinstance(message, Ended | Failed):
                self._told[worker.place] = message

    def _note_the_end(self, worker: Worker) -> None:
        place, told, code = worker.place, self._told.get(worker.place), worker.exit_code
        assert code is not None
        if isinstance(told, Failed) or place in self._killed:
            return
        if isinstance(told, Ended) and told.code in _CALM:
            self._ended[place] = told.code
        elif isinstance(told, Ended):
            self._add(Trouble(place, f"ended with code {told.code}", told.code, _now()))
        elif -code in self._passed:
            # It could not act on the signal yet, so the others cannot finish their update either.
            self._ended[place] = _CODES[-code]
            self._is_unready = True
            self._deadline = min(self._deadline, _now() + self.limits.grace)
        elif self._stopped is None or code != -signal.SIGTERM:
            self._add(Trouble(place, _how_it_left(code), ExitCode.WORKER_LOST, _now()))

    def _add(self, trouble: Trouble) -> None:
        """What happens after the others were told to stop follows from that."""
        late = self._stopped is not None and trouble.at > self._stopped
        self._troubles.append(replace(trouble, is_consequence=True) if late else trouble)

    def _obey(self) -> None:
        """Pass each kind of signal on once; a second interrupt ends everything at once."""
        while self._arrived:
            number = self._arrived.pop(0)
            if number not in self._passed:
                self._passed.append(number)
                self._tell_all(number)
                self._deadline = min(self._deadline, _now() + self.limits.saving)
            elif number == signal.SIGINT:
                self._is_cut_short = True
                self._kill()

    def _stop_after_a_failure(self) -> None:
        if self._stopped is not None or not self._troubles:
            return
        first = in_order(self._troubles)[0]
        if first.is_consequence and _now() < first.at + self.limits.settle:
            return  # its cause is still on its way to us
        self._stopped = _now()
        self._tell_all(signal.SIGTERM)
        self._deadline = min(self._deadline, self._stopped + self.limits.grace)

    def _enforce(self) -> None:
        """Who has not listened until now is killed; after a failure that needs no word."""
        if _now() < self._deadline:
            return
        silent = self._running if self._stopped is None and not self._is_unready else []
        for worker in sorted(silent, key=lambda one: not one.is_stopped):  # the others wait for it
            name = signal.Signals(self._passed[0]).name
            halted = "is halted (SIGSTOP), " * worker.is_stopped
            text = f"{halted}did not end within {self.limits.saving:g} s of {name} and was killed"
            self._add(Trouble(worker.place, text, ExitCode.HANG, _now()))
        self._kill()

    def _tell_all(self, number: int) -> None:
        for worker in self._running:
            worker.send(number)

    def _kill(self) -> None:
        for worker in self._running:
            self._killed.add(worker.place)
            worker.kill()
        self._deadline = math.inf

    def _outcome(self) -> Outcome:
        if self._is_cut_short:
            return Outcome(ExitCode.INTERRUPTED)
        troubles = in_order(self._troubles)
        if troubles and not (self._is_unready and troubles[0].is_consequence):
            return Outcome(troubles[0].code, troubles)
        codes = set(self._ended.values())
        if len(codes) == 1:
            return Outcome(codes.pop())
        if self._passed:
            return Outcome(_CODES[self._passed[0]])
        return _disagreement(self._ended)


def _start_one(worker: Worker, context: Context, order: Order) -> Context:
    """Start it, and return where the next one is to come from."""
    try:
        try:
            worker.start(context, order)
        except (EOFError, ConnectionError):
            # A target that cannot be loaded has ended the forkserver; a worker will say why.
            context = multiprocessing.get_context("spawn")
            worker.start(context, order)
    except OSError as error:
        raise ConfigError(
            f"worker {order.world.rank + 1} of {order.world.size} could not be started "
            f"({error}); lower --replicas or --shards"
        ) from error
    return context


def _how_it_left(code: int) -> str:
    if code >= 0:
        return f"left with code {code} without a word"
    known = {int(one): one.name for one in signal.Signals}
    return f"was ended by {known.get(-code, f'signal {-code}')}"


def _disagreement(ended: Mapping[Place, int]) -> Outcome:
    """Workers agree on how a run ends; if they do not, something is wrong with us."""
    (first, code), *others = sorted(ended.items(), key=lambda one: one[0].rank)
    other, different = next(one for one in others if one[1] != code)
    text = f"ended with code {code}, but {other} with {different}"
    return Outcome(ExitCode.BUG, (Trouble(first, text, ExitCode.BUG, _now()),))


def _now() -> float:
    return time.monotonic()


@contextmanager
def _signals_into(arrived: list[int]) -> Iterator[None]:
    """Signals to this process are only remembered; elsewhere than in the main thread, not even."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def remember(number: int, frame: FrameType | None) -> None:
        del frame
        arrived.append(number)

    # What was ignored when we were started stays ignored: that is how `nohup` works.
    heard = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, remember) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
