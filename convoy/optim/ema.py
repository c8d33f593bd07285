"""EMA: an exponential moving average of weights and running statistics, updated with every update.

V ← V + (1 − decay) · (w − V)        V starts as the weights after the first update

That is decay · V + (1 − decay) · w, but for its rounding: weights that do not change are their own
average to the bit, and no share of them is lost because decay and 1 − decay were rounded apart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from convoy.optim.optimizer import BLOCK, Optimizer


def _whole(optimizer: Optimizer, shard: Tensor) -> Tensor:
    """Without sharding the shard is everything."""
    del optimizer
    return shard


class ExponentialMovingAverage:
    """The average of the stages of one process, in fp32: of weights our shard, of the rest all.

    With a decay of 0 there is no average. `gather` makes whole vectors of shards; all processes
    must call what needs it at the same time.
    """

    def __init__(
        self,
        decay: float,
        optimizers: Sequence[Optimizer],
        tensors: Mapping[str, Tensor],  # of the network: weights and running statistics
        gather: Callable[[Optimizer, Tensor], Tensor] = _whole,
    ) -> None:
        self.decay = decay
        self.started = False
        self._optimizers = optimizers if decay else ()
        self._tensors = tensors
        self._gather = gather
        self._weights = [
            torch.zeros_like(_stored(one), dtype=torch.float32) for one in self._optimizers
        ]
        self._others = self._without_optimizer() if decay else {}
        self._other_averages = {
            name: torch.zeros_like(one, dtype=torch.float32) for name, one in self._others.items()
        }

    def _without_optimizer(self) -> dict[str, Tensor]:
        """Running statistics and frozen weights; of the latter the masters, if there are any."""
        updated = {name for one in self._optimizers for name in one.flat.weights}
        others = {name: one for name, one in self._tensors.items() if name not in updated}
        for optimizer in self._optimizers:
            others |= optimizer.frozen_masters
        return others

    @torch.no_grad()
    def update(self) -> None:
        """The weights have changed. Operations round one by one, so no split changes a bit."""
        if not self.decay:
            return
        for average, now in self._blocks():
            if self.started:
                average.add_((now.to(average) - average).mul_(1 - self.decay))
            else:
                average.copy_(now)
        self.started = True
        for optimizer in self._optimizers:
            optimizer.storage.evict()

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Small enough that intermediate results stay in the cache."""
        pairs = [
            *zip(self._weights, map(_stored, self._optimizers), strict=True),
            *((self._other_averages[name], one) for name, one in self._others.items()),
        ]
        for average, now in pairs:
            for first in range(0, len(average), BLOCK):
                yield average[first : first + BLOCK], now[first : first + BLOCK]

    def named(self) -> dict[str, Tensor]:
        """By the names of the model, as far as this process has them; empty before the start."""
        if not self.started:
            return {}
        named = dict(self._other_averages)
        for average, optimizer in zip(self._weights, self._optimizers, strict=True):
            named |= optimizer.flat.named(self._gather(optimizer, average))
        return named

    @torch.no_grad()
    def load(self, averages: Mapping[str, Tensor]) -> None:
        """Resume from those of a checkpoint; without any, the next update starts the average."""
        if not self.decay:
            return
        self.started = bool(averages)
        if not averages:
            return
        for average, optimizer in zip(self._weights, self._optimizers, strict=True):
            whole = optimizer.flat.flatten(averages)
            average.copy_(whole[optimizer.owned.start : optimizer.owned.stop])
        for name, average in self._other_averages.items():
            average.copy_(averages[name])

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the network has the average for weights, in the type that it computes with."""
        before = {name: one.clone() for name, one in self._tensors.items()}
        self._copy_to_network(self.named())
        for optimizer in self._optimizers:
            optimizer.round_weights()
        try:
            yield
        finally:
            self._copy_to_network(before)

    @torch.no_grad()
    def _copy_to_network(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in self._tensors.items():
            tensor.copy_(tensors[name])


def _stored(optimizer: Optimizer) -> Tensor:
    """Our shard of the weights as a checkpoint stores them."""
    if optimizer.master is not None:
        return optimizer.master
    return optimizer.flat.values[optimizer.owned.start : optimizer.owned.stop]
