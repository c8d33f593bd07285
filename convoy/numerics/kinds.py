"""What kind of numbers a weight has: as it is kept, as the network uses it, its gradient, its
state. Weights of one kind lie in one vector and are updated together.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from convoy.numerics.types import FLOAT32, NumberType


@dataclass(frozen=True)
class Kind:
    """The types around one weight."""

    kept: NumberType = FLOAT32  # what an update changes and a checkpoint holds
    used: NumberType = FLOAT32  # what layers compute with; its gradients are of this type too
    sums: torch.dtype | None = None  # of gradients; None is the type as it is kept
    state: NumberType = FLOAT32  # of the optimizer
    reduction: str = "auto"  # how gradients become one, by name: see `reductions.py`

    @property
    def sum_type(self) -> torch.dtype:
        return self.sums or self.kept.dtype

    @property
    def has_master(self) -> bool:
        """Whether the truth lies beside what the network uses."""
        return self.kept != self.used


@dataclass(frozen=True)
class Place:
    """Elements of a flat vector, at an update."""

    elements: range
    update: int


class Rounder:
    """Rounds what an update has made of 32-bit numbers: to the nearest value of the type."""

    def round(self, values: Tensor, to: NumberType, what: str, at: Place) -> Tensor:
        """`what` is a slot of the state, or "weight". The result is of 32 bits in memory."""
        del what, at  # who rounds by chance needs them
        return to.nearest(values)
