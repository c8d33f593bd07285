"""The larger one of c and 1 − c for c ~ Beta(α, α): any α > 0, four even numbers, no rejection.

r = √(1 − U^(1/(α + ½))) · cos 2πV      (1 + r)/2 ~ Beta(α + 1, α + 1), by Ulrich's polar method
gamma(α) = gamma(α + 1) · U^(1/α)       both gammas are brought down; their sum cancels out
c / (1 − c) = (1 + r) / (1 − r) · (U₁ / U₂)^(1/α)
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from convoy.config.sections.data import MixingConfig
from convoy.rng import F64, key, uniform

_BELOW_ONE = 1 - 2.0**-53


def larger_shares(alpha: float, stream: int, *counters: npt.ArrayLike) -> F64:
    """One for each tuple of counters, in [½, 1]. Logarithms hold what a small α makes of chance."""
    radius, angle, first, second = (1 - uniform(stream, *counters, draw) for draw in range(4))
    reach = np.sqrt(-np.expm1(np.log(radius) / (alpha + 0.5)))
    across = np.clip(reach * np.cos(2 * math.pi * angle), -_BELOW_ONE, _BELOW_ONE)
    with np.errstate(over="ignore"):  # an endless ratio is a share of 1
        odds = 2 * np.arctanh(across) + (np.log(first) - np.log(second)) / alpha
    shares: F64 = 1 / (1 + np.exp(-np.abs(odds)))
    return shares


Span = tuple[int, int]  # the first pixel, and the one behind the last


@dataclass(frozen=True)
class Box:
    """Pixels of a square image that come from another one, and the side of the image."""

    rows: Span
    columns: Span
    side: int

    @property
    def kept(self) -> float:
        """The share of the image that stays."""
        (top, bottom), (left, right) = self.rows, self.columns
        return 1 - (bottom - top) * (right - left) / self.side**2


@dataclass(frozen=True)
class Mix:
    """What happens to one micro-batch: nothing without shares and box."""

    samples: int
    own: F64 | None = None  # (micro,): each image's share in its mixup, exact in 32 bits
    box: Box | None = None
    by_worker: bool = False

    @property
    def _beyond(self) -> int:
        """How far before it the image lies from which the box comes; of two it is the other one."""
        return 1 if self.samples == 2 else 2

    def on_device(self, images: Tensor) -> Tensor:
        """Runs in the loop, with pixels as planes. Planes are rows with other strides: no copy."""
        if self.by_worker or (self.own is None and self.box is None):
            return images
        return self.images(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def images(self, images: Tensor) -> Tensor:
        """Of (micro, height, width, channels); what came in is left as it was.

        Each operation rounds by itself, so the bits are the same wherever it is done.
        """
        if self.own is not None:
            own = torch.from_numpy(self.own.astype(np.float32)).to(images.device).view(-1, 1, 1, 1)
            images = (images * own).add_(images.roll(1, 0).mul_(1 - own))
        if self.box is not None:
            assert images.shape[1:3] == (self.box.side, self.box.side)
            rows, columns = slice(*self.box.rows), slice(*self.box.columns)
            others = images[:, rows, columns].roll(self._beyond, 0)
            images = images.clone()
            images[:, rows, columns] = others
        return images

    def targets(self, labels: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Labels of (micro,) → as (several, micro), their shares likewise; unmixed they stay."""
        if labels is None or (self.own is None and self.box is None):
            return labels, None
        # Whose label counts, as places before the image, and its share: the image itself first.
        parts = [(0, np.ones(self.samples))]
        if self.own is not None:
            parts = [(0, self.own), (1, 1 - self.own)]
        if self.box is not None:
            kept, beyond = self.box.kept, self._beyond
            there = [(back + beyond, (1 - kept) * np.roll(share, beyond)) for back, share in parts]
            parts = [*((back, kept * share) for back, share in parts), *there]
        shares = torch.from_numpy(np.stack([share for _, share in parts]).astype(np.float32))
        return torch.stack([labels.roll(back) for back, _ in parts]), shares.to(labels.device)


@dataclass(frozen=True)
class Mixing:
    """How the micro-batches of a run are mixed: square images of one side."""

    config: MixingConfig
    seed: int
    side: int

    def draw(self, epoch: int, number: int, samples: int) -> Mix:
        wish = self.config
        own = self._own(epoch, number, samples) if wish.mixup_alpha else None
        box = self._box(epoch, number) if wish.cuts else None
        return Mix(samples, own, box, wish.hostside_image_mixing)

    def _own(self, epoch: int, number: int, samples: int) -> F64:
        stream = key(self.seed, "mixup", epoch)
        drawn = larger_shares(self.config.mixup_alpha, stream, number, np.arange(samples))
        return drawn.astype(np.float32).astype(np.float64)

    def _box(self, epoch: int, number: int) -> Box | None:
        """None where nothing is cut, be it that no whole pixel is."""
        chances = uniform(key(self.seed, "cutmix", epoch), number, np.arange(5)).tolist()
        spared, first, second, down, across = chances
        if spared < self.config.cutmix_disable_prob:
            return None
        extent = self.side * math.sqrt(1 - kept_share(self.config, first, second))
        box = Box(self._span(extent, down), self._span(extent, across), self.side)
        return box if box.kept < 1 else None

    def _span(self, extent: float, chance: float) -> Span:
        """Where the box begins and ends, moved to whole pixels.

        Evenly inside; in a version of TensorFlow's its center may be anywhere, then it is moved in.
        """
        room = self.side - extent
        start = chance * room
        if self.config.cutmix_version is not None:
            start = min(max(chance * self.side - extent / 2, 0.0), room)
        return round(start), round(start + extent)


def kept_share(wish: MixingConfig, first: float, second: float) -> float:
    """The share of the image that cutmix is to leave, from two even numbers."""
    low, high = wish.cutmix_lambda_low, wish.cutmix_lambda_high
    match wish.cutmix_version:
        case None:
            return low + (high - low) * first
        case 1:
            if first < 1.55 * low - 0.96:
                return 1.0
            least = math.exp(-4)
            return 1 + math.log(least + (1 - least) * second) / 4
        case _:
            return low


UNMIXED = Mixing(MixingConfig(), seed=0, side=1)
