"""Layers that leave something out by chance while they train.

What is left out is a function of seed, layer, update, micro-batch and place: the same bits under
every layout, and when a pass is computed again.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from convoy.rng import StepPosition, key, uniform


@dataclass(frozen=True)
class DropoutRng:
    """The random numbers of one layer."""

    seed: int
    layer: str
    position: StepPosition

    def kept(self, count: int, rate: float) -> Tensor:
        """For each of `count` elements: 1 ÷ (1 − rate) if it is kept, 0 if it is dropped."""
        drawn = uniform(self._stream, self.position.update, self.position.micro, np.arange(count))
        return torch.from_numpy((drawn >= rate).astype(np.float32) / np.float32(1 - rate))

    @cached_property
    def _stream(self) -> int:
        return key(self.seed, "dropout", self.layer)


class Dropout(nn.Module):
    """Some elements become 0, the others grow so that the mean stays."""

    def __init__(self, rate: float, rng: DropoutRng) -> None:
        super().__init__()
        self.rate = rate
        self.rng = rng
        self.frozen = False  # then nothing is left out

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.draws:
            return inputs
        kept = self.rng.kept(inputs.numel(), self.rate) if self.rate < 1 else torch.zeros(())
        return scaled(inputs, kept.expand(inputs.numel()).view(inputs.shape))

    @property
    def draws(self) -> bool:
        """Whether a pass leaves anything to chance."""
        return self.training and not self.frozen and self.rate > 0


class DropPath(nn.Module):
    """Some samples lose this branch, the others grow so that the mean stays."""

    def __init__(self, rate: float, rng: DropoutRng) -> None:
        super().__init__()
        self.rate = rate
        self.rng = rng
        self.frozen = False  # then nothing is left out

    def forward(self, inputs: Tensor) -> Tensor:
        return scaled(inputs, self.draw(len(inputs))) if self.draws else inputs

    @property
    def draws(self) -> bool:
        """Whether a pass leaves anything to chance."""
        return self.training and not self.frozen and self.rate > 0

    def draw(self, samples: int) -> Tensor:
        """What the branch of each sample grows by, 0 for those that lose it."""
        return self.rng.kept(samples, self.rate).view(-1, 1, 1, 1)


def scaled(inputs: Tensor, kept: Tensor) -> Tensor:
    """Each element by what it grows by."""
    return inputs * kept.to(inputs.device, inputs.dtype)
