"""The gradient of an update: micro-batches joined along a fixed pairwise tree.

Floating-point sums depend on their order. Here the order is a function of the number of
micro-batches of all replicas, so any split into replicas and accumulation gives the same bits:

    0   1   2   3   4   5      a node sums 2^level leaves and starts at a multiple of 2^level;
    └─+─┘   └─+─┘   └─+─┘      two siblings are joined as soon as both are there, so at most
      └───+───┘       │        log2(n) + 1 sums wait at any time (twice that for a block that
          └─────+─────┘        begins anywhere); what is left at the end is added from the right

A replica that computes 1, 2, 3 hands out the nodes 1 and 2+3: never 1+2, which no tree holds.
A leaf is rounded to the type of the sums before anything is added to it, wherever it was computed.
What joins two nodes is a `Reduction`: most of them add.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from convoy.numerics.flat import FlatWeights
from convoy.numerics.reductions import MEAN, SIBLINGS, Reduction
from convoy.numerics.types import FLOAT32, NumberType

# What `--accumulator-dtype` may say. Sums in float16 become infinite beyond 65504.
ACCUMULATOR_TYPES: dict[str, torch.dtype | None] = {
    "auto": None,  # that of the weight as it is kept
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Span:
    """The place of a node: leaves start … start + 2^level − 1, counted over all replicas."""

    start: int
    level: int

    @property
    def leaves(self) -> int:
        return 1 << self.level

    @property
    def end(self) -> int:
        return self.start + self.leaves

    def is_left_of(self, other: "Span") -> bool:
        """Whether the two are siblings, this one the left."""
        aligned = self.start % (2 << self.level) == 0
        return aligned and self.level == other.level and self.end == other.start

    def parent(self) -> "Span":
        """The span of a left sibling and its right one."""
        return Span(self.start, self.level + 1)


@dataclass(frozen=True)
class Node:
    """Neighboring micro-batches as one."""

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


def fold(nodes: Iterable[Node], reduction: Reduction = MEAN) -> Tensor:
    """All nodes, which come in the order of their leaves, as one that no reduction has finished.

    Their vectors are used up; that of the first one holds the result.
    """
    waiting: list[Node] = []
    for node in nodes:
        while waiting and waiting[-1].span.is_left_of(node.span):
            left = waiting.pop()
            reduction.join([left.vector], [node.vector], SIBLINGS)
            node = Node(left.span.parent(), left.vector)
        waiting.append(node)
    assert waiting, "an update needs at least one micro-batch"
    last = waiting.pop()
    whole, leaves = last.vector, last.span.leaves
    for left in reversed(waiting):
        reduction.join([left.vector], [whole], (left.span.leaves, leaves))
        whole, leaves = left.vector, left.span.leaves + leaves
    return whole


@dataclass(frozen=True)
class _Sheet:
    """A vector to write on, and the same memory in the shapes of the weights."""

    vector: Tensor
    views: list[Tensor]


@dataclass(frozen=True)
class _Growth:
    """What one leaf changes: it comes upon the first sheet, each sheet upon the one after it."""

    is_new: bool  # nothing lies on the first sheet yet
    sheets: list[_Sheet]


class GradientTree:
    """Collects one replica's gradients from the weights; `first` is its first leaf's number.

    Whoever watches a tree that knows how many leaves an update has is told of each weight whose
    sum is complete while the last backward is still busy with earlier layers.
    """

    def __init__(
        self,
        flat: FlatWeights,
        first: int = 0,
        dtype: torch.dtype | None = None,  # of the sums; None is that of the weights
        expected: int | None = None,  # leaves of an update; None: nobody is told early
        reduction: Reduction = MEAN,
        used: NumberType = FLOAT32,  # the type of a gradient, whatever memory it comes in
    ) -> None:
        self.flat = flat
        self.first = first
        self.dtype = dtype or flat.values.dtype
        self.expected = expected
        self.reduction = reduction
        self.used = used
        # Told of gradients, of some weights at a time, as they are before they are rounded.
        self.on_leaf: Callable[[Sequence[Tensor]], None] | None = None
        self.leaves = 0
        self.summed: set[int] = set()  # weights, by place, that hold the leaf that is growing
        self._weights = list(flat.weights.values())
        self._growth: _Growth | None = None
        self._spans: list[Span] = []
        self._sheets: list[_Sheet] = []  # one for each span
        self._spare: list[_Sheet] = []  # used again: fresh memory costs a fault per page

    def collect(self) -> None:
        """Take what the backward pass of one micro-batch left in the weights."""
        self._take([one for one in range(len(self._weights)) if one not in self.summed])
        assert all(weight.grad is None for weight in self._weights), "a gradient came too late"
        assert self._growth is not None
        self._spare.extend(self._growth.sheets[:-1])
        self._growth = None
        self.summed.clear()
        self.leaves += 1

    def watch(self, on_summed: Callable[[], None]) -> None:
        """Call back after each weight that is complete before the last backward has ended."""
        assert self.expected is not None, "which backward is the last one?"
        for place, weight in enumerate(self._weights):
            hook = partial(self._arrived, place, on_summed)
            weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def nodes(self) -> list[Node]:
        """What this replica has to add to the sum of all, in order. Nothing is copied."""
        pairs = zip(self._spans, self._sheets, strict=True)
        return [Node(span, sheet.vector) for span, sheet in pairs]

    def extents(self) -> list[range]:
        """Where each weight lies in the vectors, by place."""
        return list(self.flat.extents().values())

    def for_weights(self, result: Tensor) -> Tensor:
        """What a reduction came to in the type of the weights, as the optimizer wants it."""
        return result.to(self.flat.values.dtype)

    def clear(self) -> None:
        """The update is made, or will not be: the vectors are free again."""
        self._spare.extend(self._sheets)
        self._sheets.clear()
        self._spans.clear()
        self.leaves = 0

    def _arrived(self, place: int, on_summed: Callable[[], None], weight: Tensor) -> None:
        del weight  # torch hands it over; its place says more
        if self.leaves + 1 == self.expected:
            assert place not in self.summed, "one backward gives a weight one gradient"
            self._take([place])
            self.summed.add(place)
            on_summed()

    @torch.no_grad()
    def _take(self, places: Sequence[int]) -> None:
        """Add the growing leaf's gradients of some weights wherever it belongs."""
        self._growth = growth = self._growth or self._grow()
        if not places:  # torch refuses empty lists, and a stage may have no weights
            return
        leaf = self._leaf([self._weights[place] for place in places])
        columns = [[sheet.views[place] for place in places] for sheet in growth.sheets]
        if growth.is_new:
            torch._foreach_copy_(columns[0], leaf)
        else:
            self.reduction.join(columns[0], leaf, SIBLINGS)
        for right, left in pairwise(columns):
            self.reduction.join(left, right, SIBLINGS)
        for place in places:
            self._weights[place].grad = None

    def _leaf(self, weights: Sequence[nn.Parameter]) -> list[Tensor]:
        """What a backward left in some weights; 32-bit gradients are not touched."""
        gradients = [one.grad for one in weights if one.grad is not None]
        assert len(gradients) == len(weights), "the loss does not depend on some weight"
        if self.on_leaf is not None:
            self.on_leaf(gradients)
        if self.used != FLOAT32:
            gradients = [one.to(self.used.dtype) for one in gradients]
        return [self.reduction.leaf(one, self.dtype) for one in gradients]

    def _grow(self) -> _Growth:
        """Make a place for the next leaf, and join the siblings that it completes."""
        assert self.leaves != self.expected, f"an update has {self.expected} micro-batches"
        span = Span(self.first + self.leaves, 0)
        is_new = not (self._spans and self._spans[-1].is_left_of(span))
        sheets = [self._blank()] if is_new else []
        while self._spans and self._spans[-1].is_left_of(span):
            span = self._spans.pop().parent()
            sheets.append(self._sheets.pop())
        self._spans.append(span)
        self._sheets.append(sheets[-1])
        return _Growth(is_new, sheets)

    def _blank(self) -> _Sheet:
        """Zeros between the weights stay: only the views are ever written."""
        if self._spare:
            return self._spare.pop()
        vector = torch.zeros_like(self.flat.values, dtype=self.dtype)
        return _Sheet(vector, self.flat.views(vector))
