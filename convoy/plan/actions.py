"""The actions that schedules consist of: passes of a micro-batch through a stage; how they follow
each other, and when each of them can begin.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Pass:
    """One micro-batch on one stage. The stage is named where a process holds several."""

    letter: ClassVar[str]

    micro: int
    stage: int | None = None

    def __str__(self) -> str:
        place = "" if self.stage is None else self.stage
        return f"{place}{self.letter}{self.micro}"


class Forward(Pass):
    """The forward pass of one micro-batch through one stage."""

    letter = "F"


class Backward(Pass):
    """The backward pass of one micro-batch through one stage."""

    letter = "B"


class BackwardInput(Pass):
    """The half of a backward pass that others wait for: gradients of what came in."""

    letter = "I"


class BackwardWeight(Pass):
    """The other half, which nobody waits for: gradients of the weights."""

    letter = "W"


Action = Forward | Backward | BackwardInput | BackwardWeight


def is_last_of_its_micro(action: Action) -> bool:
    """Whether the stage needs nothing of this micro-batch any more."""
    return isinstance(action, Backward | BackwardWeight)


def answers(action: Action) -> bool:
    """Whether the stage before gets its gradient by this action."""
    return isinstance(action, Backward | BackwardInput)


def most_held(actions: Iterable[Action]) -> int:
    """The most micro-batches between their forward and their last backward."""
    held = most = 0
    for action in actions:
        held += isinstance(action, Forward)
        most = max(most, held)
        held -= is_last_of_its_micro(action)
    return most


def paired(forwards: list[Action], backwards: list[Action], ahead: int) -> list[Action]:
    """Run ahead so far, then pair each forward with the oldest backward."""
    pairs = zip(forwards[ahead:], backwards, strict=False)  # the rest of the backwards is the drain
    return [
        *forwards[:ahead],
        *(action for pair in pairs for action in pair),
        *backwards[len(forwards) - ahead :],
    ]


Step = tuple[int, str, int]  # a stage, the letter of an action, a micro-batch


def step_before(stage: int, action: Action) -> Step:
    """What an action waits for: the neighbor's same pass, or the other half of its own."""
    match action:
        case Forward(micro):
            return stage - 1, action.letter, micro
        case BackwardWeight(micro):
            return stage, BackwardInput.letter, micro
        case _:
            return stage + 1, action.letter, action.micro


def start_times(
    orders: Sequence[Sequence[Action]],
    seconds: Callable[[Action, int], float] = lambda *_: 1.0,
) -> list[list[float]]:
    """When each action of each process begins, if it begins as early as it can.

    `seconds` is the time that an action takes on a stage.
    """
    todo = [
        deque((process if action.stage is None else action.stage, action) for action in order)
        for process, order in enumerate(orders)
    ]
    steps = {(stage, action.letter, action.micro) for row in todo for stage, action in row}
    ended: dict[Step, float] = {}
    starts: list[list[float]] = [[] for _ in orders]
    clocks = [0.0] * len(todo)
    while any(todo):
        before = len(ended)
        for process, row in enumerate(todo):
            # The first stage and the last one have a neighbor less.
            while row and ((needed := step_before(*row[0])) in ended or needed not in steps):
                stage, action = row.popleft()
                start = max(clocks[process], ended.get(needed, 0.0))
                starts[process].append(start)
                clocks[process] = start + seconds(action, stage)
                ended[stage, action.letter, action.micro] = clocks[process]
        assert len(ended) > before, "every process waits for another one"
    return starts
