"""Micro-batches and their targets: the types that data, parallel and engine share."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Mixed:
    """Several labels for each sample."""

    labels: Tensor  # (several, micro); its own first
    shares: Tensor  # (several, micro); those of a sample add up to 1


Targets = Tensor | Mixed  # labels are (micro,)
Bundle = tuple[Tensor, ...]  # what one layer or stage hands to the next: usually one tensor


def expected(targets: Targets) -> Tensor:
    """The answer that counts as right for each sample: however it was mixed, its own label."""
    return targets.labels[0] if isinstance(targets, Mixed) else targets
