"""What an update rule is: how a block of weights moves, and what must be known for that."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from convoy.optim.lengths import Lengths
from convoy.optim.step import Step


@dataclass(frozen=True)
class Block:
    """Some elements of the owned range, all alike: 32-bit numbers, to be changed in place."""

    weight: Tensor
    gradient: Tensor  # of the loss itself, no longer scaled, with the rule's decay; may be used up
    state: Mapping[str, Tensor]
    decays: bool
    lengths: Lengths | None = None  # of the whole weight, where the rule measures it


class Rule(Protocol):
    """How a block of weights moves."""

    @property
    def slots(self) -> Mapping[str, float]:
        """The state it needs, each with the value it begins with."""

    @property
    def decay(self) -> float:
        """Weight decay as a part of the loss: times the weight, it joins the gradient."""

    @property
    def measured(self) -> Collection[str]:
        """Names of weights whose lengths it must know; if any, no block holds parts of two."""

    def move(self, block: Block, at: Step) -> None:
        """Change the weight and the state."""
