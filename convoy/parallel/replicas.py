"""Replicas agree on their gradients before each update."""

from collections.abc import Sequence

from torch import Tensor


class Alone:
    """The replica group of a run that has only one."""

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Nothing to meet: our gradients are already the mean."""
