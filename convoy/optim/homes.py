"""Where the state of an optimizer lives between two updates."""

from typing import Protocol

import torch
from torch import Tensor


class Home(Protocol):
    """Gives vectors, and may put them aside when nobody works with them."""

    def vector(self, elements: int, like: Tensor) -> Tensor:
        """Zeros of the kind of `like`."""

    def rest(self) -> None:
        """The update is made; the vectors are not needed until the next one."""


class Resident:
    """State stays where the weights are."""

    def vector(self, elements: int, like: Tensor) -> Tensor:
        return torch.zeros(elements, dtype=like.dtype, device=like.device)

    def rest(self) -> None:
        """Nothing to put aside."""
