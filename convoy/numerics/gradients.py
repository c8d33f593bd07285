"""The gradient of an update: micro-batches summed or averaged along a fixed pairwise tree."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from convoy.numerics.flat import FlatParameters
from convoy.numerics.precision import FLOAT32, DtypePolicy, FloatFormat

DIVIDED_FIRST = "divided-first"  # only for parameters that patterns select

EQUAL_LEAVES = (1, 1)  # both sides have the same number of leaves


class Reduction:
    """How leaves are reduced to a result; this class computes the plain sum."""

    def prepare_leaf(self, gradient: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert the gradient of a micro-batch to a leaf, in the dtype of the accumulator."""
        return gradient.to(dtype)

    def merge(self, left: list[Tensor], right: list[Tensor], leaves: tuple[int, int]) -> None:
        """Merge the right nodes into the left ones; `leaves` counts the leaves of each side."""
        del leaves
        torch._foreach_add_(left, right)

    def prescale(self, node: Tensor, replicas: int) -> Tensor:
        """Scale the node of one replica in place, so that an all-reduce sum gives the result."""
        del replicas
        return node

    def finalize(self, total: Tensor, micro_batches: int, out: Tensor) -> Tensor:
        """Write the result for all micro-batches to `out`, which may be the total itself."""
        del micro_batches
        return out if out is total else out.copy_(total)


class Mean(Reduction):
    """Divides once, at the end."""

    def finalize(self, total: Tensor, micro_batches: int, out: Tensor) -> Tensor:
        # A division by 1 changes nothing, but reads and writes all memory.
        if micro_batches == 1:
            return super().finalize(total, micro_batches, out)
        return torch.div(total, micro_batches, out=out)


class RunningMean(Reduction):
    """Every node is the mean of its leaves: left · l ÷ (l + r) + right · r ÷ (l + r)."""

    def merge(self, left: list[Tensor], right: list[Tensor], leaves: tuple[int, int]) -> None:
        """Round each product before the addition: the sum cannot overflow, and a fused operation
        might round the end of a vector differently from its middle.
        """
        left_factor, right_factor = (count / sum(leaves) for count in leaves)
        for target, source in zip(left, right, strict=True):
            # Not `_foreach_mul_`: its in-place variant rounds the factor to 16 bits.
            target.mul_(left_factor).add_(source * right_factor)

    def prescale(self, node: Tensor, replicas: int) -> Tensor:
        return node.mul_(1 / replicas)


@dataclass(frozen=True)
class DividedFirst(Reduction):
    """Divides each leaf by the number of micro-batches while it is still in the wider dtype."""

    micro_batches: int  # of all replicas

    def prepare_leaf(self, gradient: Tensor, dtype: torch.dtype) -> Tensor:
        wide = gradient.to(torch.promote_types(gradient.dtype, dtype))
        return (wide / self.micro_batches).to(dtype)


MEAN = Mean()
REDUCTIONS: dict[str, Reduction] = {"mean": MEAN, "running-mean": RunningMean(), "sum": Reduction()}


def make_reduction(policy: DtypePolicy, micro_batches: int) -> Reduction:
    """The reduction of a dtype policy, for updates of this many micro-batches."""
    if policy.reduction == DIVIDED_FIRST:
        return DividedFirst(micro_batches)
    # A float16 sum overflows beyond 65504; all other dtypes have enough range.
    default = "running-mean" if policy.accumulator_dtype == torch.float16 else "mean"
    return REDUCTIONS[default if policy.reduction == "auto" else policy.reduction]


# The choices of `--accumulator-dtype`. Sums in float16 overflow beyond 65504.
ACCUMULATOR_DTYPES: dict[str, torch.dtype | None] = {
    "auto": None,  # the dtype in which the parameter is stored
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Node:
    """The reduced gradient of consecutive micro-batches."""

    span: range  # its leaves, numbered over all replicas; a power of two
    vector: Tensor


def _push_span(spans: list[range], span: range) -> int:
    """Append the next span, merge it with the left neighbors it completes, and return their number.

    The right one of two sibling nodes ends at a multiple of both their lengths.
    """
    joined = 0
    while spans and len(spans[-1]) == len(span) and span.stop % (2 * len(span)) == 0:
        span = range(spans.pop().start, span.stop)
        joined += 1
    spans.append(span)
    return joined


def node_spans(first: int, count: int) -> list[range]:
    """The spans of the nodes that remain after a block of leaves; known in advance."""
    spans: list[range] = []
    for leaf in range(first, first + count):
        _push_span(spans, range(leaf, leaf + 1))
    return spans


def fold_nodes(nodes: Iterable[Node], reduction: Reduction = MEAN) -> Tensor:
    """Merge all nodes, given in leaf order, into one that is not finalized.

    The vectors are overwritten; that of the first node holds the result.
    """
    spans: list[range] = []
    vectors: list[Tensor] = []
    for node in nodes:
        vector = node.vector
        for _ in range(_push_span(spans, node.span)):
            reduction.merge([vectors[-1]], [vector], EQUAL_LEAVES)
            vector = vectors.pop()
        vectors.append(vector)
    assert vectors, "an update needs at least one micro-batch"
    total, leaves = vectors.pop(), len(spans.pop())
    while vectors:
        left, count = vectors.pop(), len(spans.pop())
        reduction.merge([left], [total], (count, leaves))
        total, leaves = left, count + leaves
    return total


class BufferStorage(Protocol):
    """Memory for buffers that is outside the device between uses."""

    def zeros(self, elements: int, like: Tensor) -> Tensor:
        """Allocate zeros with the dtype of `like`."""

    def evict(self) -> None:
        """Free the memory of the device: the buffers are not needed soon."""


GradientHook = Callable[[Sequence[Tensor]], None]


@dataclass(frozen=True)
class _FlatBuffer:
    """A vector, and views of it in the shapes of the parameters."""

    vector: Tensor
    views: list[Tensor]


class GradientTree:
    """Collects the gradients of one replica from its parameters, starting with leaf `first_leaf`.

    If the number of leaves of an update is known, hooks are called for each parameter whose sum
    is complete while the last backward is still running through earlier layers.
    """

    def __init__(
        self,
        flat: FlatParameters,
        first_leaf: int = 0,
        dtype: torch.dtype | None = None,  # of the accumulator; None is that of the parameters
        expected_leaves: int | None = None,  # of an update; None disables hooks
        reduction: Reduction = MEAN,
        gradient_format: FloatFormat = FLOAT32,  # of the gradients, whatever their dtype
    ) -> None:
        self.flat = flat
        self.first_leaf = first_leaf
        self.dtype = dtype or flat.values.dtype
        self.expected_leaves = expected_leaves
        self.reduction = reduction
        self.gradient_format = gradient_format
        # Called with the gradients of some parameters at a time, before they are rounded.
        self.gradient_hook: GradientHook | None = None
        self.result_dtype = flat.values.dtype  # of the reduced gradient
        self.storage: BufferStorage | None = None  # None: the device of the parameters
        self.leaves = 0
        self.summed_weights: set[int] = set()  # indices of parameters that include the current leaf
        self._weights = list(flat.weights.values())
        # The buffers that the current leaf changes: it is merged into the first one, which may be
        # empty, and each buffer into the next one.
        self._leaf_buffers: list[_FlatBuffer] = []
        self._starts_node = False
        self._spans: list[range] = []
        self._buffers: list[_FlatBuffer] = []  # one per span
        self._free_buffers: list[_FlatBuffer] = []  # reused: new memory costs a page fault per page

    def collect(self) -> None:
        """Add the gradients of one micro-batch and clear `grad` of the parameters."""
        self._accumulate(sorted({*range(len(self._weights))} - self.summed_weights))
        assert all(weight.grad is None for weight in self._weights), (
            "a parameter still has a gradient after accumulation"
        )
        self._free_buffers.extend(self._leaf_buffers[:-1])
        self._leaf_buffers = []
        self.summed_weights.clear()
        self.leaves += 1
        if self.storage is not None:
            self.storage.evict()

    def register_summed_hook(self, hook: Callable[[], None]) -> None:
        """Call `hook` whenever a parameter's accumulated gradient is complete during the last
        backward pass.
        """
        assert self.expected_leaves is not None, "expected_leaves must be set"
        for index, weight in enumerate(self._weights):
            on_gradient = partial(self._on_gradient, index, hook)
            weight.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]

    def nodes(self) -> list[Node]:
        """The nodes that this replica contributes to the total, in order, without copies."""
        pairs = zip(self._spans, self._buffers, strict=True)
        return [Node(span, buffer.vector) for span, buffer in pairs]

    def clear(self) -> None:
        """Start over after an update, whether it was applied or not; the buffers are reused."""
        self._free_buffers.extend(self._buffers)
        self._buffers.clear()
        self._spans.clear()
        self.leaves = 0

    def _on_gradient(self, index: int, hook: Callable[[], None], weight: Tensor) -> None:
        del weight  # its index is more useful
        if self.leaves + 1 == self.expected_leaves:
            assert index not in self.summed_weights, (
                "a parameter got two gradients in one backward pass"
            )
            self._accumulate([index])
            self.summed_weights.add(index)
            hook()

    @torch.no_grad()
    def _accumulate(self, indices: Sequence[int]) -> None:
        """Merge the gradients of some parameters into the buffers of the current leaf."""
        if not self._leaf_buffers:
            self._start_leaf()
        if not indices:  # torch rejects empty lists, and a stage may have no parameters
            return
        weights = [self._weights[index] for index in indices]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        assert len(gradients) == len(weights), (
            "a parameter has no gradient: the forward pass does not use it"
        )
        if self.gradient_hook is not None:
            self.gradient_hook(gradients)
        if self.gradient_format != FLOAT32:  # fp32 gradients stay as they are
            gradients = [gradient.to(self.gradient_format.dtype) for gradient in gradients]
        leaf = [self.reduction.prepare_leaf(gradient, self.dtype) for gradient in gradients]
        if self.storage is not None:
            leaf = [gradient.to(self._leaf_buffers[0].vector.device) for gradient in leaf]
        columns = [[buffer.views[index] for index in indices] for buffer in self._leaf_buffers]
        if self._starts_node:
            torch._foreach_copy_(columns[0], leaf)
        else:
            self.reduction.merge(columns[0], leaf, EQUAL_LEAVES)
        for right, left in pairwise(columns):
            self.reduction.merge(left, right, EQUAL_LEAVES)
        for weight in weights:
            weight.grad = None

    def _start_leaf(self) -> None:
        """Prepare the buffers of the next leaf: those of nodes it completes, or a new one."""
        assert self.leaves != self.expected_leaves, (
            f"an update has only {self.expected_leaves} micro-batches"
        )
        leaf = self.first_leaf + self.leaves
        joined = _push_span(self._spans, range(leaf, leaf + 1))
        self._leaf_buffers = [self._buffers.pop() for _ in range(joined)]
        self._starts_node = not joined
        if self._starts_node and self._free_buffers:
            self._leaf_buffers = [self._free_buffers.pop()]
        elif self._starts_node:  # padding stays 0: only the views are written
            vector = self._new_vector()
            self._leaf_buffers = [_FlatBuffer(vector, self.flat.views(vector))]
        self._buffers.append(self._leaf_buffers[-1])

    def _new_vector(self) -> Tensor:
        if self.storage is None:
            return torch.zeros_like(self.flat.values, dtype=self.dtype)
        like = torch.empty(0, dtype=self.dtype, device=self.flat.values.device)
        return self.storage.zeros(self.flat.numel, like)
