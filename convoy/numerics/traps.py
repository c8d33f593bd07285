"""Traps: which layer made the first value that is not finite, in which micro-batch and samples.

They look at what every layer makes, at the gradient that comes back to it, and at the gradients
of the weights as a micro-batch leaves them. Nothing is changed, and nothing raised: the first
find is noted, and processes compare notes.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial

import torch
from torch import Tensor, nn

from convoy.numerics.gradients import GradientTree
from convoy.numerics.precision import FLOAT32, NumberType
from convoy.rng import StepPosition

ROWS = 8  # samples that are told; how many there are is told as well


class Phase(IntEnum):
    """What a value belongs to, in the order in which one micro-batch gets there."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHTS = 2


@dataclass(frozen=True)
class Note:
    """A find. The fields before the micro-batch say how early it is."""

    turn: int  # of the micro-batch within its replica: all replicas go on side by side
    phase: Phase
    order: int  # of the layer in the pass
    micro: int  # counted over all replicas
    layer: int
    bad_rows: int = 0  # 0: it belongs to the whole micro-batch
    rows: tuple[int, ...] = ()

    def as_tensor(self) -> Tensor:
        """Numbers of a fixed length, to be gathered."""
        rows = [*self.rows, *[-1] * (ROWS - len(self.rows))]
        head = [self.turn, self.phase, self.order, self.micro, self.layer, self.bad_rows]
        return torch.tensor([*head, *rows])

    @classmethod
    def from_tensor(cls, numbers: Tensor) -> "Note | None":
        turn, phase, order, micro, layer, bad_rows, *rows = numbers.tolist()
        if turn < 0:
            return None
        found = tuple(row for row in rows if row >= 0)
        return cls(turn, Phase(phase), order, micro, layer, bad_rows, found)

    @property
    def place(self) -> tuple[int, int, int, int]:
        return self.turn, self.phase, self.order, self.micro


NOTHING = torch.full((6 + ROWS,), -1)


@dataclass(frozen=True)
class Watched:
    """One layer, its number in the whole network, and the moment of its stage."""

    layer: int
    module: nn.Module
    position: StepPosition
    number: NumberType = FLOAT32  # of what it hands on: a value may be too large for that


class Traps:
    """The traps of one process. `names` are those of all layers of the network."""

    def __init__(
        self,
        names: Sequence[str],
        layers: Sequence[Watched],
        trees: Sequence[tuple[GradientTree, NumberType]],
    ) -> None:
        self.names = names
        self.layers = layers
        self.trees = trees
        self.first: Note | None = None
        self._layer_of = {weight: one.layer for one in layers for weight in one.module.parameters()}

    @contextmanager
    def set(self) -> Iterator[None]:
        """For the micro-batches of one update."""
        self.first = None
        with ExitStack() as stack:
            for one in self.layers:
                handle = one.module.register_forward_hook(partial(self._made, one))
                stack.callback(handle.remove)
            for tree, of in self.trees:
                stack.enter_context(self._listening(tree, of))
            yield

    def go_back_to(self, update: int) -> None:
        """The micro-batches of this update, counted from 0, will pass again."""
        for one in self.layers:
            one.position.resume_after(update)

    def _made(
        self, one: Watched, module: nn.Module, given: tuple[Tensor, ...], made: Tensor
    ) -> None:
        del module, given
        position = one.position
        turn, micro = position.number % len(position.micros), position.micro
        handed_on = one.number.nearest(made.detach())
        self._look(handed_on, Note(turn, Phase.FORWARD, one.layer, micro, one.layer))
        if made.requires_grad:
            back = Note(turn, Phase.BACKWARD, -one.layer, micro, one.layer)
            made.register_hook(partial(self._look, note=back))  # type: ignore[no-untyped-call]

    @contextmanager
    def _listening(self, tree: GradientTree, of: NumberType) -> Iterator[None]:
        before = tree.on_leaf

        def listen(gradients: Sequence[Tensor]) -> None:
            if before is not None:
                before(gradients)
            self._look_at_weights(tree, of)

        tree.on_leaf = listen
        try:
            yield
        finally:
            tree.on_leaf = before

    def _look_at_weights(self, tree: GradientTree, of: NumberType) -> None:
        """Those whose gradient has come and is not summed yet."""
        turn = tree.leaves
        for weight in tree.flat.weights.values():
            if weight.grad is not None and not all_finite(of.nearest(weight.grad)):
                layer = self._layer_of[weight]
                self._keep(Note(turn, Phase.WEIGHTS, -layer, tree.first + turn, layer))

    @torch.no_grad()
    def _look(self, values: Tensor, note: Note) -> None:
        if all_finite(values):
            return
        bad = (~torch.isfinite(values)).flatten(1).any(1).nonzero().flatten().tolist()
        self._keep(replace(note, bad_rows=len(bad), rows=tuple(bad[:ROWS])))

    def _keep(self, note: Note) -> None:
        if self.first is None or note.place < self.first.place:
            self.first = note


def all_finite(values: Tensor) -> bool:
    """Whether there is neither a NaN, which shows in both ends, nor an infinity."""
    if not values.numel():
        return True
    low, high = torch.aminmax(values.detach())
    return bool(torch.isfinite(low) & torch.isfinite(high))
