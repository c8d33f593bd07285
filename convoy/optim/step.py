"""What an update is told beside its gradient."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One change of the weights."""

    rate: float
    update: int = 0  # its number, from 0
    applied: int = 0  # updates before it that changed the weights: those that were skipped did not
    scale: float = 1.0  # of the loss: the gradient is so many times too large
    scale_before: float = 1.0  # that of the last update that changed the weights
