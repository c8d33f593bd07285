"""The gradient of an update: a sum over micro-batches along a fixed pairwise tree.

Floating-point sums depend on their order. Here the order is a function of the number of
micro-batches alone, so any split into replicas and accumulation gives the same bits:

    0   1   2   3   4          finished pairs are added at once, as a binary counter carries,
    └─+─┘   └─+─┘   │          so at most log2(n) + 1 partial sums wait at any time;
      └───+───┘     │          what is left at the end is added from the right
          └────+────┘
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class _Partial:
    """The sum of 2^level neighbouring micro-batches."""

    level: int
    gradients: list[Tensor]


class GradientTree:
    """Collects the gradients of one update's micro-batches from the weights themselves."""

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self.weights = weights
        self._partials: list[_Partial] = []
        self._leaves = 0

    def collect(self) -> None:
        """Take what the backward pass of one micro-batch left in the weights."""
        taken = _Partial(0, [_gradient(weight) for weight in self.weights])
        for weight in self.weights:
            weight.grad = None
        self._leaves += 1
        while self._partials and self._partials[-1].level == taken.level:
            taken = _joined(self._partials.pop(), taken)
        self._partials.append(taken)

    def mean(self) -> list[Tensor]:
        """The mean over all collected micro-batches; the tree is empty afterwards."""
        assert self._partials, "an update needs at least one micro-batch"
        whole = self._partials.pop()
        while self._partials:
            whole = _joined(self._partials.pop(), whole)
        if self._leaves > 1:
            torch._foreach_div_(whole.gradients, float(self._leaves))
        self._leaves = 0
        return whole.gradients

    def clear(self) -> None:
        """Forget an update that will not be made."""
        self._partials.clear()
        self._leaves = 0


def _gradient(weight: nn.Parameter) -> Tensor:
    assert weight.grad is not None, "the loss does not depend on this weight"
    return weight.grad


def _joined(left: _Partial, right: _Partial) -> _Partial:
    torch._foreach_add_(left.gradients, right.gradients)
    return _Partial(left.level + 1, left.gradients)
