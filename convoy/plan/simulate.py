"""Carry out the action lists of all stages without any device: does it end, how long does it take?

Each stage works through its list in order and waits for what an action needs. Between neighbors
runs one link each way; a link delivers in the order of sending, and sending does not block.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from convoy.plan.schedules import Action, Backward, Forward


@dataclass(frozen=True)
class Costs:
    """Seconds of one micro-batch on each stage, and of one transfer between neighbors."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    transfer: float = 0.0

    def of(self, action: Action, stage: int) -> float:
        return self.forward[stage] if isinstance(action, Forward) else self.backward[stage]


@dataclass(frozen=True)
class Stuck:
    """A stage that waits forever."""

    stage: int
    action: Action
    reason: str

    def __str__(self) -> str:
        return f"stage {self.stage} cannot run {self.action}: it waits for {self.reason}"


@dataclass(frozen=True)
class Simulation:
    """What happened. After a deadlock the figures are those of the part that ran."""

    seconds: float  # until the last action ended
    idle: tuple[float, ...]  # share of that time each stage did nothing
    stash: tuple[int, ...]  # most activation sets each stage held
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
    """One process on its way through its list."""

    index: int
    todo: deque[Action]
    needed: frozenset[int]  # micro-batches whose activations a backward will want
    from_before: deque[_Message] = field(default_factory=deque)
    from_after: deque[_Message] = field(default_factory=deque)
    stash: set[int] = field(default_factory=set)
    most: int = 0
    clock: float = 0.0
    busy: float = 0.0


def simulate(orders: Sequence[Sequence[Action]], costs: Costs | None = None) -> Simulation:
    """Run one action list per stage to the end, or to where nobody can move. Default cost: 1."""
    line = [_stage(index, order) for index, order in enumerate(orders)]
    costs = costs or Costs((1.0,) * len(line), (1.0,) * len(line))
    while any(_advance(line, stage, costs) for stage in line):
        pass
    seconds = max(stage.clock for stage in line)
    return Simulation(
        seconds,
        idle=tuple(1 - stage.busy / seconds if seconds else 0.0 for stage in line),
        stash=tuple(stage.most for stage in line),
        stuck=tuple(
            Stuck(stage.index, stage.todo[0], _lacks(line, stage, stage.todo[0]))
            for stage in line
            if stage.todo
        ),
    )


def _stage(index: int, order: Sequence[Action]) -> _Stage:
    needed = frozenset(action.micro for action in order if isinstance(action, Backward))
    return _Stage(index, deque(order), needed)


def _advance(line: list[_Stage], stage: _Stage, costs: Costs) -> bool:
    """Work until something is missing; whether anything was done."""
    moved = False
    while stage.todo and not _lacks(line, stage, stage.todo[0]):
        _carry_out(line, stage, stage.todo.popleft(), costs)
        moved = True
    return moved


def _inbox(line: list[_Stage], stage: _Stage, action: Action) -> deque[_Message] | None:
    """The link an action reads; None at the two ends, where it begins from what is at hand."""
    if isinstance(action, Forward):
        return stage.from_before if stage.index > 0 else None
    return stage.from_after if stage.index < len(line) - 1 else None


def _lacks(line: list[_Stage], stage: _Stage, action: Action) -> str:
    """What an action still waits for, in words; empty when it can run."""
    if isinstance(action, Backward) and action.micro not in stage.stash:
        return f"its own F{action.micro}"
    inbox = _inbox(line, stage, action)
    if inbox is None or (inbox and inbox[0].micro == action.micro):
        return ""
    sender = stage.index + (-1 if isinstance(action, Forward) else 1)
    first = f", which sent micro-batch {inbox[0].micro} first" if inbox else ""
    return f"{action} of stage {sender}{first}"


def _carry_out(line: list[_Stage], stage: _Stage, action: Action, costs: Costs) -> None:
    """Receive, compute, send."""
    inbox = _inbox(line, stage, action)
    start = max(stage.clock, inbox.popleft().arrives) if inbox else stage.clock
    cost = costs.of(action, stage.index)
    stage.clock = start + cost
    stage.busy += cost
    message = _Message(action.micro, stage.clock + costs.transfer)
    if isinstance(action, Forward):
        stage.stash |= {action.micro} & stage.needed
        stage.most = max(stage.most, len(stage.stash))
        if stage.index < len(line) - 1:
            line[stage.index + 1].from_before.append(message)
    else:
        stage.stash.remove(action.micro)
        if stage.index > 0:
            line[stage.index - 1].from_after.append(message)
