"""EMA: an exponential moving average of weights and running statistics, updated with every update.

V ← V + (1 − decay) · (w − V)        V starts as the weights after the first update

This equals decay · V + (1 − decay) · w except for rounding: the average of constant weights is
bit-identical to them, because decay and 1 − decay are never rounded separately.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from convoy.optim.optimizer import BLOCK_SIZE, Optimizer


class ExponentialMovingAverage:
    """The fp32 average of one process's stages: its shard of the weights, and all buffers.

    A decay of 0 disables it.
    """

    def __init__(
        self,
        decay: float,
        optimizers: Sequence[Optimizer],
        tensors: Mapping[str, Tensor],  # of the network: weights and running statistics
    ) -> None:
        self.decay = decay
        self.started = False
        self._optimizers = optimizers if decay else ()
        self._tensors = tensors
        self._weights = [
            torch.zeros_like(optimizer.master_weights, dtype=torch.float32)
            for optimizer in self._optimizers
        ]
        self._untrained = self._untrained_tensors() if decay else {}
        self._untrained_averages = {
            name: torch.zeros_like(tensor, dtype=torch.float32)
            for name, tensor in self._untrained.items()
        }

    def _untrained_tensors(self) -> dict[str, Tensor]:
        """Running statistics and frozen weights (their master copies where they have one)."""
        trained = {name for opt in self._optimizers for name in opt.flat_params.weights}
        untrained = {name: t for name, t in self._tensors.items() if name not in trained}
        for optimizer in self._optimizers:
            untrained |= optimizer.frozen_masters
        return untrained

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights. Elementwise, so sharding changes no bit."""
        if not self.decay:
            return
        for average, current in self._blocks():
            if self.started:
                average.add_((current.to(average) - average).mul_(1 - self.decay))
            else:
                average.copy_(current)
        self.started = True
        for optimizer in self._optimizers:
            optimizer.storage.evict()

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (average, current) blocks small enough that temporaries stay in the cache."""
        pairs = [
            *zip(self._weights, (opt.master_weights for opt in self._optimizers), strict=True),
            *((self._untrained_averages[name], tensor) for name, tensor in self._untrained.items()),
        ]
        for average, current in pairs:
            for first in range(0, len(average), BLOCK_SIZE):
                yield average[first : first + BLOCK_SIZE], current[first : first + BLOCK_SIZE]

    def named_averages(self) -> dict[str, Tensor]:
        """Averages of this process's stages by tensor name; empty before the first update.

        All replicas must call this.
        """
        if not self.started:
            return {}
        named = dict(self._untrained_averages)
        for average, optimizer in zip(self._weights, self._optimizers, strict=True):
            named |= optimizer.flat_params.named_views(optimizer.gather_vector(average))
        return named

    @torch.no_grad()
    def load_averages(self, averages: Mapping[str, Tensor]) -> None:
        """Restore the averages of a checkpoint; without any, the next update starts the average."""
        if not self.decay:
            return
        self.started = bool(averages)
        if not averages:
            return
        for average, optimizer in zip(self._weights, self._optimizers, strict=True):
            vector = optimizer.flat_params.flatten(averages)
            average.copy_(vector[optimizer.shard_range.start : optimizer.shard_range.stop])
        for name, average in self._untrained_averages.items():
            average.copy_(averages[name])

    @contextmanager
    def apply_to_network(self) -> Iterator[None]:
        """Run the network with the averaged weights, in its compute dtype, inside the context."""
        current = {name: tensor.clone() for name, tensor in self._tensors.items()}
        self._copy_to_network(self.named_averages())
        for optimizer in self._optimizers:
            optimizer.round_weights()
        try:
            yield
        finally:
            self._copy_to_network(current)

    @torch.no_grad()
    def _copy_to_network(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in self._tensors.items():
            tensor.copy_(tensors[name])
