"""How the gradients of an update's micro-batches become one. Four of them, along the tree:

    mean            ((a + b) + (c + d)) ÷ 4          at the end, over all replicas
    sum              (a + b) + (c + d)
    running-mean    ½ (½ a + ½ b) + ½ (½ c + ½ d)    no node is larger than its largest leaf
    divided-first   (¼ a + ¼ b) + (¼ c + ¼ d)        neither are these

All work on one element at a time, so a stretch of a vector has the bits of the whole.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from convoy.numerics.kinds import Kind

DIVIDED_FIRST = "divided-first"  # no choice for all weights: patterns name those it is for

SIBLINGS = (1, 1)  # whatever they hold, it is as much


class Reduction(Protocol):
    """A way from leaves to a result."""

    def leaf(self, gradient: Tensor, dtype: torch.dtype) -> Tensor:
        """A micro-batch's gradient as the tree takes it, in the type of the sums."""

    def join(self, left: list[Tensor], right: list[Tensor], leaves: tuple[int, int]) -> None:
        """Take the right ones into the left ones; `leaves` tells how many each side holds."""

    def share(self, own: Tensor, replicas: int) -> Tensor:
        """One replica's node, in place, ready to be added to those of as many leaves."""

    def finish(self, total: Tensor, micro_batches: int, out: Tensor) -> Tensor:
        """The node of all micro-batches as the result, written to `out`, which may be the node."""


class Sum:
    """Adds, and nothing else."""

    def leaf(self, gradient: Tensor, dtype: torch.dtype) -> Tensor:
        return gradient.to(dtype)

    def join(self, left: list[Tensor], right: list[Tensor], leaves: tuple[int, int]) -> None:
        del leaves
        torch._foreach_add_(left, right)

    def share(self, own: Tensor, replicas: int) -> Tensor:
        del replicas
        return own

    def finish(self, total: Tensor, micro_batches: int, out: Tensor) -> Tensor:
        del micro_batches
        return out if out is total else out.copy_(total)


class Mean(Sum):
    """Divides once, at the end."""

    def finish(self, total: Tensor, micro_batches: int, out: Tensor) -> Tensor:
        # A division by 1 would change no bit, and go through all memory.
        if micro_batches == 1:
            return super().finish(total, micro_batches, out)
        return torch.div(total, micro_batches, out=out)


class RunningMean(Sum):
    """Every node is the mean of its leaves: left · l ÷ (l + r) + right · r ÷ (l + r)."""

    def join(self, left: list[Tensor], right: list[Tensor], leaves: tuple[int, int]) -> None:
        """Products come first, each rounded: their sum cannot overflow, and in one operation
        the end of a vector might be rounded otherwise than its middle.
        """
        ours, theirs = (count / sum(leaves) for count in leaves)
        for one, other in zip(left, right, strict=True):
            # Not `_foreach_mul_`: in place, and only there, it rounds the factor to 16 bits.
            one.mul_(ours).add_(other * theirs)

    def share(self, own: Tensor, replicas: int) -> Tensor:
        return own.mul_(1 / replicas)


@dataclass(frozen=True)
class DividedFirst(Sum):
    """A leaf is its share of the mean already: divided while it is still in the wider type."""

    micro_batches: int  # of all replicas

    def leaf(self, gradient: Tensor, dtype: torch.dtype) -> Tensor:
        wide = gradient.to(torch.promote_types(gradient.dtype, dtype))
        return (wide / self.micro_batches).to(dtype)


MEAN = Mean()
BY_NAME: dict[str, Reduction] = {"mean": MEAN, "running-mean": RunningMean(), "sum": Sum()}


def reduction_of(kind: Kind, micro_batches: int) -> Reduction:
    """What a kind of weights wants, in updates of so many micro-batches."""
    if kind.reduction == DIVIDED_FIRST:
        return DividedFirst(micro_batches)
    # A sum in float16 is infinite beyond 65504; all other types have room.
    unasked = "running-mean" if kind.sum_type == torch.float16 else "mean"
    return BY_NAME[unasked if kind.reduction == "auto" else kind.reduction]
