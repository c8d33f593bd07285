"""Actions of a pipeline schedule (passes of a micro-batch through a stage), their dependencies and
earliest start times.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Pass:
    """One micro-batch on one stage. `stage` is set only if a process has several stages."""

    symbol: ClassVar[str]

    micro: int
    stage: int | None = None

    def __str__(self) -> str:
        prefix = "" if self.stage is None else self.stage
        return f"{prefix}{self.symbol}{self.micro}"


class Forward(Pass):
    symbol = "F"


class Backward(Pass):
    symbol = "B"


class BackwardInput(Pass):
    """The first half of a split backward pass: gradients of the stage's inputs."""

    symbol = "I"


class BackwardWeight(Pass):
    """The second half of a split backward pass: gradients of the weights."""

    symbol = "W"


Action = Forward | Backward | BackwardInput | BackwardWeight


def frees_stash(action: Action) -> bool:
    """Whether the stage can free the micro-batch's stash after this action."""
    return isinstance(action, Backward | BackwardWeight)


def sends_gradient(action: Action) -> bool:
    """Whether this action produces the gradient for the previous stage."""
    return isinstance(action, Backward | BackwardInput)


def peak_in_flight(actions: Iterable[Action]) -> int:
    """Maximum number of micro-batches between their forward and their last backward pass."""
    in_flight = peak = 0
    for action in actions:
        in_flight += isinstance(action, Forward)
        peak = max(peak, in_flight)
        in_flight -= frees_stash(action)
    return peak


def interleave(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """Run `warmup` forwards, then alternate forwards with backwards, oldest first (1F1B)."""
    pairs = zip(forwards[warmup:], backwards, strict=False)  # remaining backwards are the cooldown
    return [
        *forwards[:warmup],
        *(action for pair in pairs for action in pair),
        *backwards[len(forwards) - warmup :],
    ]


ActionKey = tuple[int, str, int]  # stage, symbol of the action, micro-batch


def dependency(stage: int, action: Action) -> ActionKey:
    """The action that must finish first: on the neighbor stage, or the input half of the pass."""
    match action:
        case Forward(micro):
            return stage - 1, action.symbol, micro
        case BackwardWeight(micro):
            return stage, BackwardInput.symbol, micro
        case _:
            return stage + 1, action.symbol, action.micro


def start_times(
    orders: Sequence[Sequence[Action]],
    duration: Callable[[Action, int], float] = lambda *_: 1.0,
) -> list[list[float]]:
    """Earliest start time of each action of each process; `duration` is that of an action."""
    queues = [
        deque((process if action.stage is None else action.stage, action) for action in order)
        for process, order in enumerate(orders)
    ]
    known = {(stage, action.symbol, action.micro) for queue in queues for stage, action in queue}
    ended: dict[ActionKey, float] = {}
    starts: list[list[float]] = [[] for _ in orders]
    clocks = [0.0] * len(queues)
    while any(queues):
        num_ended = len(ended)
        for process, queue in enumerate(queues):
            # The first and the last stage have only one neighbor.
            while queue and ((needed := dependency(*queue[0])) in ended or needed not in known):
                stage, action = queue.popleft()
                start = max(clocks[process], ended.get(needed, 0.0))
                starts[process].append(start)
                clocks[process] = start + duration(action, stage)
                ended[stage, action.symbol, action.micro] = clocks[process]
        assert len(ended) > num_ended, "deadlock: every process waits for another one"
    return starts
