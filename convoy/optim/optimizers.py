"""Update rules over a range of the flat vector. State is vectors of that range, by slot."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from convoy.config.sections.optimizer import OptimizerConfig
from convoy.numerics.flat import FlatWeights
from convoy.optim.homes import Home, Resident

# Elements of one pass: gradient, weights and state of a block stay in the cache between its four
# operations, and state that lives elsewhere comes in block by block.
BLOCK = 1 << 17


def _itself(whole: Tensor) -> Tensor:
    return whole


class Sgd:
    """Gradient descent, with momentum when asked.

        h = g + decay · w        v ← momentum · v + h        w ← w − rate · v

    Weights with one dimension (norms and biases) do not decay.
    """

    def __init__(
        self,
        flat: FlatWeights,
        config: OptimizerConfig,
        owned: range | None = None,  # the part of the vector that is updated here; None is all
        home: Home | None = None,
    ) -> None:
        self.flat = flat
        self.owned = range(flat.elements) if owned is None else owned
        self.momentum = config.momentum
        self.decay = config.weight_decay
        self.home = home or Resident()
        slots = ("velocity",) if config.momentum else ()
        self.slots = {slot: self.home.vector(len(self.owned), flat.values) for slot in slots}

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """Change the owned weights. The gradient, of the owned range, is used up."""
        assert len(gradient) == len(self.owned)
        weights = self.flat.values[self.owned.start : self.owned.stop]
        decaying = max(0, self.flat.decaying - self.owned.start)
        for first in range(0, len(weights), BLOCK):
            block = slice(first, first + BLOCK)
            move, weight = gradient[block], weights[block]
            if self.decay:
                bound = max(0, decaying - first)
                move[:bound].add_(weight[:bound], alpha=self.decay)
            weight.add_(self._velocity(block, move), alpha=-rate)
        self.home.rest()

    def _velocity(self, block: slice, move: Tensor) -> Tensor:
        """The block's way: the velocity, after it took up the move; without momentum the move."""
        if not self.slots:
            return move
        kept = self.slots["velocity"][block]
        velocity = kept.to(move.device)  # itself, unless it lives elsewhere
        velocity.mul_(self.momentum).add_(move)
        kept.copy_(velocity)  # torch does nothing when the two are one
        return velocity

    def named_state(self, gather: Callable[[Tensor], Tensor] = _itself) -> dict[str, Tensor]:
        """The state as a checkpoint names it; `gather` makes whole vectors of owned ranges.

        A frozen weight has never moved: its state is zeros, so that a later part may train it.
        """
        still = {name: torch.zeros_like(one) for name, one in self.flat.frozen.items()}
        return {
            f"{name}/{slot}": tensor
            for slot, vector in self.slots.items()
            for name, tensor in {**self.flat.named(gather(vector)), **still}.items()
        }

    def named_form(self) -> dict[str, Tensor]:
        """What `named_state` will hold, without its numbers: shapes and types."""
        return self.named_state(lambda part: part.new_empty(self.flat.elements, device="meta"))

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over the owned range of a checkpoint's state."""
        for slot, vector in self.slots.items():
            whole = self.flat.flatten({name: state[f"{name}/{slot}"] for name in self.flat.weights})
            vector.copy_(whole[self.owned.start : self.owned.stop])
        self.home.rest()
