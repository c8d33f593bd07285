"""The gradient of an update: a sum over micro-batches along a fixed pairwise tree.

Floating-point sums depend on their order. Here the order is a function of the number of
micro-batches of all replicas, so any split into replicas and accumulation gives the same bits:

    0   1   2   3   4   5      a node sums 2^level leaves and starts at a multiple of 2^level;
    └─+─┘   └─+─┘   └─+─┘      two siblings are joined as soon as both are there, so at most
      └───+───┘       │        log2(n) + 1 sums wait at any time (twice that for a block that
          └─────+─────┘        begins anywhere); what is left at the end is added from the right

A replica that computes 1, 2, 3 hands out the nodes 1 and 2+3: never 1+2, which no tree holds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from convoy.numerics.flat import FlatWeights

_Change = Callable[[list[Tensor], list[Tensor]], object]


@dataclass(frozen=True)
class Span:
    """The place of a node: leaves start … start + 2^level − 1, counted over all replicas."""

    start: int
    level: int

    @property
    def end(self) -> int:
        return self.start + (1 << self.level)

    def is_left_of(self, other: "Span") -> bool:
        """Whether the two are siblings, this one the left."""
        aligned = self.start % (2 << self.level) == 0
        return aligned and self.level == other.level and self.end == other.start

    def parent(self) -> "Span":
        """The span of a left sibling and its right one."""
        return Span(self.start, self.level + 1)


@dataclass(frozen=True)
class Node:
    """A sum of neighbouring micro-batches."""

    span: Span
    vector: Tensor


def spans_of(first: int, count: int) -> list[Span]:
    """The nodes that remain of a block of leaves: known before anything is computed."""
    spans: list[Span] = []
    for leaf in range(first, first + count):
        span = Span(leaf, 0)
        while spans and spans[-1].is_left_of(span):
            span = spans.pop().parent()
        spans.append(span)
    return spans


def fold(nodes: Iterable[Node]) -> Tensor:
    """The sum of nodes that come in the order of their leaves. Their vectors are used up."""
    waiting: list[Node] = []
    for node in nodes:
        while waiting and waiting[-1].span.is_left_of(node.span):
            left = waiting.pop()
            node = Node(left.span.parent(), left.vector.add_(node.vector))
        waiting.append(node)
    assert waiting, "an update needs at least one micro-batch"
    whole = waiting.pop().vector
    while waiting:
        whole = waiting.pop().vector.add_(whole)
    return whole


@dataclass(frozen=True)
class _Sheet:
    """A vector to write on, and the same memory in the shapes of the weights."""

    vector: Tensor
    views: list[Tensor]


class GradientTree:
    """Collects one replica's gradients from the weights; `first` is its first leaf's number."""

    def __init__(self, flat: FlatWeights, first: int = 0) -> None:
        self.flat = flat
        self.first = first
        self.leaves = 0
        self._spans: list[Span] = []
        self._sheets: list[_Sheet] = []  # one for each span
        self._spare: list[_Sheet] = []  # used again: fresh memory costs a fault per page

    @torch.no_grad()
    def collect(self) -> None:
        """Take what the backward pass of one micro-batch left in the weights."""
        leaf = Span(self.first + self.leaves, 0)
        self.leaves += 1
        gradients = [_gradient(weight) for weight in self.flat.weights.values()]
        if self._spans and self._spans[-1].is_left_of(leaf):
            _each(torch._foreach_add_, self._sheets[-1], gradients)
            self._spans[-1] = self._spans[-1].parent()
        else:
            self._spans.append(leaf)
            self._sheets.append(self._blank())
            _each(torch._foreach_copy_, self._sheets[-1], gradients)
        for weight in self.flat.weights.values():
            weight.grad = None
        while len(self._spans) > 1 and self._spans[-2].is_left_of(self._spans[-1]):
            self._join_last()

    def nodes(self) -> list[Node]:
        """What this replica has to add to the sum of all, in order. Nothing is copied."""
        pairs = zip(self._spans, self._sheets, strict=True)
        return [Node(span, sheet.vector) for span, sheet in pairs]

    def clear(self) -> None:
        """The update is made, or will not be: the vectors are free again."""
        self._spare.extend(self._sheets)
        self._sheets.clear()
        self._spans.clear()
        self.leaves = 0

    def _join_last(self) -> None:
        right = self._sheets.pop()
        self._sheets[-1].vector.add_(right.vector)
        self._spare.append(right)
        self._spans.pop()
        self._spans[-1] = self._spans[-1].parent()

    def _blank(self) -> _Sheet:
        """Zeros between the weights stay: only the views are ever written."""
        if self._spare:
            return self._spare.pop()
        vector = torch.zeros_like(self.flat.values)
        return _Sheet(vector, self.flat.views(vector))


def _gradient(weight: nn.Parameter) -> Tensor:
    assert weight.grad is not None, "the loss does not depend on this weight"
    return weight.grad


def _each(change: _Change, sheet: _Sheet, gradients: list[Tensor]) -> None:
    if gradients:  # torch refuses empty lists, and a stage may have no weights
        change(sheet.views, gradients)
