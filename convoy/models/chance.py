"""Layers that leave something out by chance while they train.

What is left out is a function of seed, layer, update, micro-batch and place: the same bits under
every layout, and when a pass is computed again.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from convoy.chance import key, uniform
from convoy.moment import Moment


@dataclass(frozen=True)
class Dice:
    """The draws of one layer."""

    stream: int
    moment: Moment

    def kept(self, count: int, rate: float) -> Tensor:
        """For each of so many places whether it stays: 1 ÷ (1 − rate) or 0."""
        drawn = uniform(self.stream, self.moment.update, self.moment.micro, np.arange(count))
        return torch.from_numpy((drawn >= rate).astype(np.float32) / np.float32(1 - rate))


@dataclass(frozen=True)
class Chance:
    """The dice of all layers of a network."""

    seed: int
    moment: Moment

    def of(self, layer: str) -> Dice:
        return Dice(key(self.seed, "dropout", layer), self.moment)


class Dropout(nn.Module):
    """Some elements become 0, the others grow so that the mean stays."""

    def __init__(self, rate: float, dice: Dice) -> None:
        super().__init__()
        self.rate = rate
        self.dice = dice
        self.frozen = False  # then nothing is left out

    def forward(self, given: Tensor) -> Tensor:
        if not self.draws:
            return given
        kept = self.dice.kept(given.numel(), self.rate) if self.rate < 1 else torch.zeros(())
        return scaled(given, kept.expand(given.numel()).view(given.shape))

    @property
    def draws(self) -> bool:
        """Whether a pass leaves anything to chance."""
        return self.training and not self.frozen and self.rate > 0


class DropPath(nn.Module):
    """Some samples lose this branch, the others grow so that the mean stays."""

    def __init__(self, rate: float, dice: Dice) -> None:
        super().__init__()
        self.rate = rate
        self.dice = dice
        self.frozen = False  # then nothing is left out

    def forward(self, given: Tensor) -> Tensor:
        return scaled(given, self.draw(len(given))) if self.draws else given

    @property
    def draws(self) -> bool:
        """Whether a pass leaves anything to chance."""
        return self.training and not self.frozen and self.rate > 0

    def draw(self, samples: int) -> Tensor:
        """What the branch of each sample grows by, 0 for those that lose it."""
        return self.dice.kept(samples, self.rate).view(-1, 1, 1, 1)


def scaled(given: Tensor, kept: Tensor) -> Tensor:
    """Each element by what it grows by."""
    return given * kept.to(given.device, given.dtype)
