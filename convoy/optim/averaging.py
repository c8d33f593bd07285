"""An exponential average of weights and running statistics, taken along update by update.

V ← V + (1 − decay) · (w − V)        V begins as the weights after the first update

That is decay · V + (1 − decay) · w, but for its rounding: weights that rest are their own average
to the bit, and no share of them is lost because decay and 1 − decay were rounded apart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from convoy.optim.optimizer import BLOCK, Optimizer

Gather = Callable[[Tensor], Tensor]


class RunningAverage:
    """In 32-bit numbers: of weights the range that is updated here, of all else the whole."""

    def __init__(
        self, optimizers: Sequence[Optimizer], others: Mapping[str, Tensor], decay: float
    ) -> None:
        """`others` are the live tensors that no optimizer moves."""
        self.decay = decay
        self.begun = False
        self._optimizers = optimizers
        self._others = others
        self._weights = [torch.zeros_like(_kept(one), dtype=torch.float32) for one in optimizers]
        self._rest = {
            name: torch.zeros_like(one, dtype=torch.float32) for name, one in others.items()
        }

    @torch.no_grad()
    def follow(self) -> None:
        """An update has changed the weights. Operations round one by one: no cut changes a bit."""
        for average, now in self._blocks():
            if self.begun:
                average.add_((now.to(average) - average).mul_(1 - self.decay))
            else:
                average.copy_(now)
        self.begun = True
        for one in self._optimizers:
            one.home.rest()

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Small enough that what is computed on the way stays in the cache."""
        pairs = [
            *zip(self._weights, map(_kept, self._optimizers), strict=True),
            *((self._rest[name], one) for name, one in self._others.items()),
        ]
        for average, now in pairs:
            for first in range(0, len(average), BLOCK):
                yield average[first : first + BLOCK], now[first : first + BLOCK]

    def named(self, gather: Callable[[Optimizer], Gather]) -> dict[str, Tensor]:
        """By the names of the model; `gather` gives what makes whole vectors of owned ranges."""
        named = dict(self._rest)
        for average, one in zip(self._weights, self._optimizers, strict=True):
            named |= one.flat.named(gather(one)(average))
        return named

    @torch.no_grad()
    def load(self, averages: Mapping[str, Tensor]) -> None:
        """Go on with those of a checkpoint; without any, with the next update."""
        self.begun = bool(averages)
        if not averages:
            return
        for average, one in zip(self._weights, self._optimizers, strict=True):
            whole = one.flat.flatten(averages)
            average.copy_(whole[one.owned.start : one.owned.stop])
        for name, average in self._rest.items():
            average.copy_(averages[name])


def _kept(optimizer: Optimizer) -> Tensor:
    """The owned weights as they are kept."""
    if optimizer.master is not None:
        return optimizer.master
    return optimizer.flat.values[optimizer.owned.start : optimizer.owned.stop]
