"""The gradient of an update: micro-batches summed or averaged along a fixed pairwise tree."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from convoy.numerics.flat import FlatWeights
from convoy.numerics.precision import FLOAT32, DtypePolicy, NumberType

DIVIDED_FIRST = "divided-first"  # no choice for all weights: patterns name those it is for

SIBLINGS = (1, 1)  # whatever they hold, it is as much


class Reduction:
    """A way from leaves to a result: here their sum, and nothing else."""

    def leaf(self, gradient: Tensor, dtype: torch.dtype) -> Tensor:
        """A micro-batch's gradient as the tree takes it, in the type of the sums."""
        return gradient.to(dtype)

    def join(self, left: list[Tensor], right: list[Tensor], leaves: tuple[int, int]) -> None:
        """Take the right ones into the left ones; `leaves` tells how many each side holds."""
        del leaves
        torch._foreach_add_(left, right)

    def share(self, own: Tensor, replicas: int) -> Tensor:
        """One replica's node, in place, ready to be added to those of as many leaves."""
        del replicas
        return own

    def finish(self, total: Tensor, micro_batches: int, out: Tensor) -> Tensor:
        """The node of all micro-batches as the result, written to `out`, which may be the node."""
        del micro_batches
        return out if out is total else out.copy_(total)


class Mean(Reduction):
    """Divides once, at the end."""

    def finish(self, total: Tensor, micro_batches: int, out: Tensor) -> Tensor:
        # A division by 1 would change no bit, and go through all memory.
        if micro_batches == 1:
            return super().finish(total, micro_batches, out)
        return torch.div(total, micro_batches, out=out)


class RunningMean(Reduction):
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
class DividedFirst(Reduction):
    """A leaf is its share of the mean already: divided while it is still in the wider type."""

    micro_batches: int  # of all replicas

    def leaf(self, gradient: Tensor, dtype: torch.dtype) -> Tensor:
        wide = gradient.to(torch.promote_types(gradient.dtype, dtype))
        return (wide / self.micro_batches).to(dtype)


MEAN = Mean()
BY_NAME: dict[str, Reduction] = {"mean": MEAN, "running-mean": RunningMean(), "sum": Reduction()}


def reduction_of(policy: DtypePolicy, micro_batches: int) -> Reduction:
    """The reduction of a dtype policy, for updates of so many micro-batches."""
    if policy.reduction == DIVIDED_FIRST:
        return DividedFirst(micro_batches)
    # A sum in float16 is infinite beyond 65504; all other types have room.
    unasked = "running-mean" if policy.accumulator_dtype == torch.float16 else "mean"
    return BY_NAME[unasked if policy.reduction == "auto" else policy.reduction]


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

    def is_left_of(self, other: "Span") -> bool:
        """Whether the two are siblings, this one the left."""
        aligned = self.start % (2 << self.level) == 0
        neighbors = self.start + (1 << self.level) == other.start
        return aligned and neighbors and self.level == other.level

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
        gradient_type: NumberType = FLOAT32,  # whatever memory a gradient comes in
    ) -> None:
        self.flat = flat
        self.first = first
        self.dtype = dtype or flat.values.dtype
        self.expected = expected
        self.reduction = reduction
        self.gradient_type = gradient_type
        # Told of gradients, of some weights at a time, as they are before they are rounded.
        self.on_leaf: Callable[[Sequence[Tensor]], None] | None = None
        self.leaves = 0
        self.summed: set[int] = set()  # weights, by place, that hold the leaf that is growing
        self._weights = list(flat.weights.values())
        # What the leaf that is growing changes: it comes upon the first sheet, on which nothing may
        # lie yet, and each sheet upon the one after it.
        self._growing: list[_Sheet] = []
        self._is_new = False
        self._spans: list[Span] = []
        self._sheets: list[_Sheet] = []  # one for each span
        self._spare: list[_Sheet] = []  # used again: fresh memory costs a fault per page

    def collect(self) -> None:
        """Take what the backward pass of one micro-batch left in the weights."""
        self._take([one for one in range(len(self._weights)) if one not in self.summed])
        assert all(weight.grad is None for weight in self._weights), "a gradient came too late"
        self._spare.extend(self._growing[:-1])
        self._growing = []
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
        if not self._growing:
            self._grow()
        if not places:  # torch refuses empty lists, and a stage may have no weights
            return
        leaf = self._leaf([self._weights[place] for place in places])
        columns = [[sheet.views[place] for place in places] for sheet in self._growing]
        if self._is_new:
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
        if self.gradient_type != FLOAT32:
            gradients = [one.to(self.gradient_type.dtype) for one in gradients]
        return [self.reduction.leaf(one, self.dtype) for one in gradients]

    def _grow(self) -> None:
        """Make a place for the next leaf, and join the siblings that it completes."""
        assert self.leaves != self.expected, f"an update has {self.expected} micro-batches"
        span = Span(self.first + self.leaves, 0)
        sheets: list[_Sheet] = []
        while self._spans and self._spans[-1].is_left_of(span):
            span = self._spans.pop().parent()
            sheets.append(self._sheets.pop())
        self._is_new = not sheets
        self._growing = sheets or [self._blank()]
        self._spans.append(span)
        self._sheets.append(self._growing[-1])

    def _blank(self) -> _Sheet:
        """Zeros between the weights stay: only the views are ever written."""
        if self._spare:
            return self._spare.pop()
        vector = torch.zeros_like(self.flat.values, dtype=self.dtype)
        return _Sheet(vector, self.flat.views(vector))
