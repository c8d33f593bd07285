"""Carries out the actions of all processes without any device: does a schedule end, how long does
it take, what does it hold?

Each process works through its list in order and waits for what an action needs. Between two
neighboring stages runs one link each way; a link delivers in the order of sending, and sending
does not block.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from convoy.planning.actions import (
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    sends_gradient,
)


@dataclass(frozen=True)
class Costs:
    """Seconds of one micro-batch on each stage, and of one transfer between neighbors."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    transfer: float = 0.0
    weight_share: float = 0.5  # of a backward pass that is split: what its weight half takes

    def of(self, action: Action, stage: int) -> float:
        match action:
            case Forward():
                return self.forward[stage]
            case Backward():
                return self.backward[stage]
            case BackwardInput():
                return self.backward[stage] * (1 - self.weight_share)
            case BackwardWeight():
                return self.backward[stage] * self.weight_share


@dataclass(frozen=True)
class Stuck:
    """A stage that waits forever."""

    stage: int
    action: Action
    reason: str

    def __str__(self) -> str:
        passing = f"{self.action.symbol}{self.action.micro}"
        return f"stage {self.stage} cannot run {passing}: it waits for {self.reason}"


@dataclass(frozen=True)
class Simulation:
    """What happened. After a deadlock the figures are those of the part that ran."""

    seconds: float  # until the last action ended
    idle: tuple[float, ...]  # share of that time each process did nothing
    stash: tuple[int, ...]  # most activation sets each stage held
    process_stash: tuple[int, ...]  # most that all stages of a process held together
    starts: tuple[tuple[float, ...], ...]  # when each action of each process began
    stuck: tuple[Stuck, ...]

    @property
    def deadlocked(self) -> bool:
        return bool(self.stuck)


@dataclass(frozen=True)
class _Message:
    micro: int
    arrives: float


@dataclass
class _Stage:
    """What lies at one stage."""

    index: int
    from_before: deque[_Message] = field(default_factory=deque)
    from_after: deque[_Message] = field(default_factory=deque)
    stash: set[int] = field(default_factory=set)
    halved: set[int] = field(default_factory=set)  # whose input half is done
    most: int = 0


@dataclass
class _Process:
    """One process on its way through its list."""

    todo: deque[tuple[_Stage, Action]]
    stages: list[_Stage]
    most: int = 0
    clock: float = 0.0
    busy: float = 0.0
    starts: list[float] = field(default_factory=list)


def simulate(orders: Sequence[Sequence[Action]], costs: Costs | None = None) -> Simulation:
    """Run one list per process to the end, or to where nobody can move. Default cost: 1 each."""
    placed = [
        [(process if action.stage is None else action.stage, action) for action in order]
        for process, order in enumerate(orders)
    ]
    line = [_Stage(index) for index in range(1 + max(stage for row in placed for stage, _ in row))]
    processes = [
        _Process(
            deque((line[stage], action) for stage, action in row),
            [line[stage] for stage in {stage for stage, _ in row}],
        )
        for row in placed
    ]
    costs = costs or _even(orders, len(line))
    while any(_advance(line, process, costs) for process in processes):
        pass
    seconds = max(process.clock for process in processes)
    return Simulation(
        seconds,
        idle=tuple(1 - item.busy / seconds if seconds else 0.0 for item in processes),
        stash=tuple(stage.most for stage in line),
        process_stash=tuple(process.most for process in processes),
        starts=tuple(tuple(process.starts) for process in processes),
        stuck=tuple(_stuck(line, *item.todo[0]) for item in processes if item.todo),
    )


def _even(orders: Sequence[Sequence[Action]], stages: int) -> Costs:
    """One second for whatever stands in the lists: half a backward pass counts as much as all."""
    is_split = any(isinstance(item, BackwardInput) for order in orders for item in order)
    return Costs((1.0,) * stages, (2.0 if is_split else 1.0,) * stages)


def _advance(line: list[_Stage], process: _Process, costs: Costs) -> bool:
    """Work until something is missing; whether anything was done."""
    moved = False
    while process.todo and not _lacks(line, *process.todo[0]):
        stage, action = process.todo.popleft()
        _carry_out(line, process, stage, action, costs)
        moved = True
    return moved


def _inbox(line: list[_Stage], stage: _Stage, action: Action) -> deque[_Message] | None:
    """The link an action reads; None where it begins from what is at hand."""
    if isinstance(action, Forward):
        return stage.from_before if stage.index > 0 else None
    return stage.from_after if sends_gradient(action) and stage is not line[-1] else None


def _lacks(line: list[_Stage], stage: _Stage, action: Action) -> str:
    """What an action still waits for, in words; empty when it can run."""
    if isinstance(action, BackwardWeight) and action.micro not in stage.halved:
        return f"its own I{action.micro}"
    if sends_gradient(action) and action.micro not in stage.stash - stage.halved:
        return f"its own F{action.micro}"
    inbox = _inbox(line, stage, action)
    if inbox is None or (inbox and inbox[0].micro == action.micro):
        return ""
    sender = stage.index + (-1 if isinstance(action, Forward) else 1)
    first = f", which sent micro-batch {inbox[0].micro} first" if inbox else ""
    return f"{action.symbol}{action.micro} of stage {sender}{first}"


def _stuck(line: list[_Stage], stage: _Stage, action: Action) -> Stuck:
    return Stuck(stage.index, action, _lacks(line, stage, action))


def _carry_out(
    line: list[_Stage], process: _Process, stage: _Stage, action: Action, costs: Costs
) -> None:
    """Receive, compute, keep, send."""
    inbox = _inbox(line, stage, action)
    start = max(process.clock, inbox.popleft().arrives) if inbox else process.clock
    cost = costs.of(action, stage.index)
    process.starts.append(start)
    process.clock = start + cost
    process.busy += cost
    _keep(process, stage, action)
    message = _Message(action.micro, process.clock + costs.transfer)
    if isinstance(action, Forward) and stage is not line[-1]:
        line[stage.index + 1].from_before.append(message)
    elif sends_gradient(action) and stage.index > 0:
        line[stage.index - 1].from_after.append(message)


def _keep(process: _Process, stage: _Stage, action: Action) -> None:
    """What an action leaves in the memory of its stage, and what it frees."""
    match action:
        case Forward():
            stage.stash.add(action.micro)
            stage.most = max(stage.most, len(stage.stash))
            process.most = max(process.most, sum(len(item.stash) for item in process.stages))
        case BackwardInput():
            stage.halved.add(action.micro)
        case _:
            stage.stash.remove(action.micro)
            stage.halved.discard(action.micro)
