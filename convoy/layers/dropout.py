"""Dropout and stochastic depth (drop path).

Masks are a pure function of seed, layer, update, micro-batch and element index: they are the same
bits under every layout, and when a forward pass is recomputed.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from convoy.rng import StepPosition, key, uniform


@dataclass(frozen=True)
class DropoutRng:
    """Counter-based random masks of one layer."""

    seed: int
    layer: str
    position: StepPosition

    def keep_mask(self, count: int, rate: float) -> Tensor:
        """Return 1 ÷ (1 − rate) for each element that is kept, 0 for each that is dropped."""
        samples = uniform(self._key, self.position.update, self.position.micro, np.arange(count))
        return torch.from_numpy((samples >= rate).astype(np.float32) / np.float32(1 - rate))

    @cached_property
    def _key(self) -> int:
        return key(self.seed, "dropout", self.layer)


class StochasticDrop(nn.Module):
    """Base class of `Dropout` and `DropPath`."""

    def __init__(self, rate: float, rng: DropoutRng) -> None:
        super().__init__()
        self.rate = rate
        self.rng = rng
        self.frozen = False  # a frozen layer drops nothing

    @property
    def is_active(self) -> bool:
        """Whether the next pass is random."""
        return self.training and not self.frozen and self.rate > 0


class Dropout(StochasticDrop):
    """Zero random elements and scale the rest so that the mean is preserved."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.is_active:
            return inputs
        mask = self.rng.keep_mask(inputs.numel(), self.rate) if self.rate < 1 else torch.zeros(())
        return apply_mask(inputs, mask.expand(inputs.numel()).view(inputs.shape))


class DropPath(StochasticDrop):
    """Drop the residual branch of random samples and scale the rest to preserve the mean."""

    def forward(self, inputs: Tensor) -> Tensor:
        return apply_mask(inputs, self.sample_mask(len(inputs))) if self.is_active else inputs

    def sample_mask(self, samples: int) -> Tensor:
        """Return the scale of each sample's branch, 0 where it is dropped: (samples, 1, 1, 1)."""
        return self.rng.keep_mask(samples, self.rate).view(-1, 1, 1, 1)


def apply_mask(inputs: Tensor, mask: Tensor) -> Tensor:
    """Multiply by the mask in the dtype and on the device of the inputs."""
    return inputs * mask.to(inputs.device, inputs.dtype)
