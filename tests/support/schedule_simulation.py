"""Simulates a schedule without devices: deadlocks, duration, idle time and stash.

Each process runs its actions in order and waits for the inputs of an action. Neighboring stages
are connected by one link in each direction; a link preserves the order of messages, and sending
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
    weight_share: float = 0.5  # share of BackwardWeight in a split backward pass

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
    """A stage in a deadlock."""

    stage: int
    action: Action
    reason: str

    def __str__(self) -> str:
        action = f"{self.action.symbol}{self.action.micro}"
        return f"stage {self.stage} cannot run {action}: it waits for {self.reason}"


@dataclass(frozen=True)
class Simulation:
    """The result of a simulation, up to the deadlock if there is one."""

    seconds: float  # until the last action ended
    idle: tuple[float, ...]  # share of the time in which each process was idle
    stash: tuple[int, ...]  # peak stashed micro-batches of each stage
    process_stash: tuple[int, ...]  # peak stashed micro-batches of all stages of a process
    starts: tuple[tuple[float, ...], ...]  # start time of each action of each process
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
    """The messages and activations of one stage."""

    index: int
    from_before: deque[_Message] = field(default_factory=deque)
    from_after: deque[_Message] = field(default_factory=deque)
    stash: set[int] = field(default_factory=set)
    split: set[int] = field(default_factory=set)  # micro-batches after BackwardInput
    peak: int = 0


@dataclass
class _Process:
    """The progress of one process."""

    todo: deque[tuple[_Stage, Action]]
    stages: list[_Stage]
    peak: int = 0
    clock: float = 0.0
    busy: float = 0.0
    starts: list[float] = field(default_factory=list)


def simulate(orders: Sequence[Sequence[Action]], costs: Costs | None = None) -> Simulation:
    """Run the actions of each process to the end or to a deadlock. By default each costs 1."""
    placed = [
        [(process if action.stage is None else action.stage, action) for action in order]
        for process, order in enumerate(orders)
    ]
    pipeline = [
        _Stage(index) for index in range(1 + max(stage for row in placed for stage, _ in row))
    ]
    processes = [
        _Process(
            deque((pipeline[stage], action) for stage, action in row),
            [pipeline[stage] for stage in {stage for stage, _ in row}],
        )
        for row in placed
    ]
    costs = costs or _unit_costs(orders, len(pipeline))
    while any(_advance(pipeline, process, costs) for process in processes):
        pass
    seconds = max(process.clock for process in processes)
    return Simulation(
        seconds,
        idle=tuple(1 - item.busy / seconds if seconds else 0.0 for item in processes),
        stash=tuple(stage.peak for stage in pipeline),
        process_stash=tuple(process.peak for process in processes),
        starts=tuple(tuple(process.starts) for process in processes),
        stuck=tuple(_stuck(pipeline, *item.todo[0]) for item in processes if item.todo),
    )


def _unit_costs(orders: Sequence[Sequence[Action]], stages: int) -> Costs:
    """One second per action; each half of a split backward pass is an action."""
    is_split = any(isinstance(item, BackwardInput) for order in orders for item in order)
    return Costs((1.0,) * stages, (2.0 if is_split else 1.0,) * stages)


def _advance(pipeline: list[_Stage], process: _Process, costs: Costs) -> bool:
    """Run actions until one has to wait; returns whether any ran."""
    moved = False
    while process.todo and not _missing(pipeline, *process.todo[0]):
        stage, action = process.todo.popleft()
        _run(pipeline, process, stage, action, costs)
        moved = True
    return moved


def _inbox(pipeline: list[_Stage], stage: _Stage, action: Action) -> deque[_Message] | None:
    """The link that an action receives from; None if it receives nothing."""
    if isinstance(action, Forward):
        return stage.from_before if stage.index > 0 else None
    return stage.from_after if sends_gradient(action) and stage is not pipeline[-1] else None


def _missing(pipeline: list[_Stage], stage: _Stage, action: Action) -> str:
    """A description of the missing input of an action; empty if it can run."""
    if isinstance(action, BackwardWeight) and action.micro not in stage.split:
        return f"its own I{action.micro}"
    if sends_gradient(action) and action.micro not in stage.stash - stage.split:
        return f"its own F{action.micro}"
    inbox = _inbox(pipeline, stage, action)
    if inbox is None or (inbox and inbox[0].micro == action.micro):
        return ""
    sender = stage.index + (-1 if isinstance(action, Forward) else 1)
    first = f", which sent micro-batch {inbox[0].micro} first" if inbox else ""
    return f"{action.symbol}{action.micro} of stage {sender}{first}"


def _stuck(pipeline: list[_Stage], stage: _Stage, action: Action) -> Stuck:
    return Stuck(stage.index, action, _missing(pipeline, stage, action))


def _run(
    pipeline: list[_Stage], process: _Process, stage: _Stage, action: Action, costs: Costs
) -> None:
    """Receive, compute, update the stash, send."""
    inbox = _inbox(pipeline, stage, action)
    start = max(process.clock, inbox.popleft().arrives) if inbox else process.clock
    cost = costs.of(action, stage.index)
    process.starts.append(start)
    process.clock = start + cost
    process.busy += cost
    _update_stash(process, stage, action)
    message = _Message(action.micro, process.clock + costs.transfer)
    if isinstance(action, Forward) and stage is not pipeline[-1]:
        pipeline[stage.index + 1].from_before.append(message)
    elif sends_gradient(action) and stage.index > 0:
        pipeline[stage.index - 1].from_after.append(message)


def _update_stash(process: _Process, stage: _Stage, action: Action) -> None:
    """Add or remove the activations of an action."""
    match action:
        case Forward():
            stage.stash.add(action.micro)
            stage.peak = max(stage.peak, len(stage.stash))
            process.peak = max(process.peak, sum(len(item.stash) for item in process.stages))
        case BackwardInput():
            stage.split.add(action.micro)
        case _:
            stage.stash.remove(action.micro)
            stage.split.discard(action.micro)
