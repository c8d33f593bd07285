"""The passes of a micro-batch through a stage: the words that every order of work is written in."""

from collections.abc import Iterable
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

Row = list[Action]  # what one process does, in order


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


def paired(forwards: Row, backwards: Row, ahead: int) -> Row:
    """Run ahead so far, then pair each forward with the oldest backward."""
    pairs = zip(forwards[ahead:], backwards, strict=False)  # the rest of the backwards is the drain
    return [
        *forwards[:ahead],
        *(action for pair in pairs for action in pair),
        *backwards[len(forwards) - ahead :],
    ]
