"""An update rule, carried out over a range of the flat vector. State is vectors of that range, by
slot.

Rules compute in 32 bits, block by block; what weights and state are kept in is rounded at the end
of a block.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from convoy.numerics.flat import ALIGNMENT, FlatWeights, Stretch
from convoy.numerics.kinds import Kind, Place, Rounder
from convoy.optim.homes import Home, Resident
from convoy.optim.lengths import Lengths, lengths_of, row_squares
from convoy.optim.rule import Block, Rule
from convoy.optim.step import Step

# Elements of one pass: gradient, weights and state of a block stay in the cache between its
# operations, and state that lives elsewhere comes in block by block.
BLOCK = 1 << 17

MASTER = "master"  # the slot of weights that are kept in other numbers than the network uses


def _itself(whole: Tensor) -> Tensor:
    return whole


@dataclass(frozen=True)
class Owned:
    """The part of the vector that is updated here, and how owners put their rows together."""

    elements: range
    complete: Callable[[Tensor], Tensor] = _itself  # our rows → those of the whole vector


class Optimizer:
    """Carries out a rule for the weights of one kind."""

    def __init__(
        self,
        flat: FlatWeights,
        rule: Rule,
        owned: Owned | None = None,  # None is all
        home: Home | None = None,
        kind: Kind | None = None,
        rounder: Rounder | None = None,
    ) -> None:
        self.flat = flat
        self.rule = rule
        part = owned or Owned(range(flat.elements))
        self.owned, self._complete = part.elements, part.complete
        self.home = home or Resident()
        self.kind = kind or Kind()
        self.rounder = rounder or Rounder()
        self._measured = [one for one in flat.weights if one in rule.measured]
        self._stretches = flat.stretches() if self._measured else flat.regions()
        self.slots = {slot: self._slot(first) for slot, first in rule.slots.items()}
        self.master = self._master()
        self._still_masters: dict[str, Tensor] = {}
        self.take_still({name: one.detach() for name, one in flat.frozen.items()})
        self.round_used()

    def _slot(self, first: float) -> Tensor:
        like = self.flat.values.new_empty(0, dtype=self.kind.state.dtype)
        vector = self.home.vector(len(self.owned), like)
        return vector.fill_(first) if first else vector

    def _master(self) -> Tensor | None:
        if not self.kind.has_master:
            return None
        master = self.home.vector(len(self.owned), self.flat.values)
        return master.copy_(self._own(self.flat.values))

    def _own(self, vector: Tensor) -> Tensor:
        return vector[self.owned.start : self.owned.stop]

    @torch.no_grad()
    def take_still(self, weights: Mapping[str, Tensor]) -> None:
        """Weights that stay as they are: kept as they come, used as all of their kind."""
        for name, one in self.flat.frozen.items():
            if self.kind.has_master:
                self._still_masters[name] = weights[name].to(one.device, copy=True)
            one.copy_(self.kind.used.nearest(weights[name].to(one.device)))

    @torch.no_grad()
    def round_used(self) -> None:
        """Weights have come from elsewhere: bring them to the type in which they are used."""
        self.flat.values.copy_(self.kind.used.nearest(self.flat.values))

    @torch.no_grad()
    def step(self, gradient: Tensor, at: Step) -> None:
        """Change the owned weights. The gradient, of the owned range, is used up."""
        assert len(gradient) == len(self.owned)
        if at.scale != 1:
            gradient.div_(at.scale)
        lengths = self._measure(gradient) if self._measured else {}
        for piece, stretch in self._pieces():
            self._step_piece(gradient[piece], piece, stretch, lengths, at)
        self.home.rest()

    def _pieces(self) -> Iterator[tuple[slice, Stretch]]:
        """Blocks of the owned range, each within one stretch."""
        for stretch in self._stretches:
            start = max(0, stretch.elements.start - self.owned.start)
            stop = min(stretch.elements.stop - self.owned.start, len(self.owned))
            for first in range(start, stop, BLOCK):
                yield slice(first, min(first + BLOCK, stop)), stretch

    def _measure(self, gradient: Tensor) -> dict[str | None, Lengths]:
        """The lengths of whole weights, and of their gradients once the decay has joined these.

        All owners come here at the same time.
        """
        rows = gradient.new_zeros(len(self.owned) // ALIGNMENT, 2, dtype=torch.float64)
        for piece, stretch in self._pieces():
            weight = self._weight(piece)
            self._join_decay(gradient[piece], weight, stretch)
            some = rows[piece.start // ALIGNMENT : piece.stop // ALIGNMENT]
            some[:, 0] = row_squares(weight)
            some[:, 1] = row_squares(gradient[piece])
        whole = self._complete(rows)
        extents = {one.name: one.elements for one in self._stretches}
        return {
            name: lengths_of(whole[extent.start // ALIGNMENT : extent.stop // ALIGNMENT])
            for name, extent in extents.items()
            if name in self._measured
        }

    def _join_decay(self, gradient: Tensor, weight: Tensor, stretch: Stretch) -> None:
        if self.rule.decay and stretch.decays:
            gradient.add_(weight, alpha=self.rule.decay)

    def _weight(self, piece: slice) -> Tensor:
        """As it is kept, where the network is: itself, unless it lives elsewhere."""
        used = self._own(self.flat.values)
        return used[piece] if self.master is None else self.master[piece].to(used.device)

    def _step_piece(
        self,
        gradient: Tensor,
        piece: slice,
        stretch: Stretch,
        lengths: Mapping[str | None, Lengths],
        at: Step,
    ) -> None:
        used, weight = self._own(self.flat.values)[piece], self._weight(piece)
        state = {slot: _widened(one[piece], used) for slot, one in self.slots.items()}
        if not self._measured:
            self._join_decay(gradient, weight, stretch)
        found = lengths.get(stretch.name)
        self.rule.move(Block(weight, gradient, state, stretch.decays, found), at)
        start = self.owned.start
        place = Place(range(start + piece.start, start + piece.stop), at.update)
        for slot, vector in self.slots.items():
            # torch does nothing when the two are one
            vector[piece].copy_(self.rounder.round(state[slot], self.kind.state, slot, place))
        kept = used if self.master is None else self.master[piece]
        kept.copy_(self.rounder.round(weight, self.kind.kept, "weight", place))
        if self.master is not None:
            used.copy_(self.kind.used.nearest(weight))

    def named_state(self, gather: Callable[[Tensor], Tensor] = _itself) -> dict[str, Tensor]:
        """The state as a checkpoint names it; `gather` makes whole vectors of owned ranges.

        A frozen weight has never moved: its state is that of the beginning, so that a later part
        may train it.
        """
        return {
            f"{name}/{slot}": tensor
            for slot, vector in self.slots.items()
            for name, tensor in {**self.flat.named(gather(vector)), **self._still(slot)}.items()
        }

    def _still(self, slot: str) -> dict[str, Tensor]:
        first, dtype = self.rule.slots[slot], self.kind.state.dtype
        return {
            name: torch.full_like(one, first, dtype=dtype) for name, one in self.flat.frozen.items()
        }

    def named_masters(self, gather: Callable[[Tensor], Tensor] = _itself) -> dict[str, Tensor]:
        """The weights as they are kept, where that is not as they are used."""
        if self.master is None:
            return {}
        return {**self.flat.named(gather(self.master)), **self._still_masters}

    def named_form(self) -> dict[str, Tensor]:
        """What `named_state` will hold, without its numbers: shapes and types."""
        return self.named_state(lambda part: part.new_empty(self.flat.elements, device="meta"))

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over the owned range of a checkpoint's state."""
        for slot, vector in self.slots.items():
            whole = self.flat.flatten({name: state[f"{name}/{slot}"] for name in self.flat.weights})
            vector.copy_(self._own(whole))
        self.home.rest()

    @torch.no_grad()
    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Weights from elsewhere, as they are to be kept."""
        whole = self.flat.flatten(weights)
        if self.master is not None:
            self.master.copy_(self._own(whole))
        self.flat.values.copy_(whole)
        self.take_still(weights)
        self.round_used()
        self.home.rest()


def _widened(part: Tensor, like: Tensor) -> Tensor:
    """As 32-bit numbers where the weights are: itself, if it is that already."""
    return part.to(like)
