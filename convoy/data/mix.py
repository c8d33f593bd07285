"""Mixup and CutMix as pure functions of (seed, epoch, micro-batch).

Mixup takes the larger of c and 1 − c for c ~ Beta(α, α), sampled from four uniform numbers for any
α > 0, without rejection:

r = √(1 − U^(1/(α + ½))) · cos 2πV      (1 + r)/2 ~ Beta(α + 1, α + 1), by Ulrich's polar method
gamma(α) = gamma(α + 1) · U^(1/α)       reduces both gammas from α + 1 to α; their sum cancels out
c / (1 − c) = (1 + r) / (1 − r) · (U₁ / U₂)^(1/α)
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from convoy.batch import MixedTargets
from convoy.config.sections.data import MixingConfig
from convoy.rng import F64, key, uniform

_BELOW_ONE = 1 - 2.0**-53


def sample_mixup_lambda(alpha: float, stream: int, *counters: npt.ArrayLike) -> F64:
    """Return max(c, 1 − c) per tuple of counters, in [½, 1]. Logarithms keep a small α accurate."""
    radius, angle, first, second = (1 - uniform(stream, *counters, draw) for draw in range(4))
    reach = np.sqrt(-np.expm1(np.log(radius) / (alpha + 0.5)))
    projection = np.clip(reach * np.cos(2 * math.pi * angle), -_BELOW_ONE, _BELOW_ONE)
    with np.errstate(over="ignore"):  # an infinite ratio gives 1
        odds = 2 * np.arctanh(projection) + (np.log(first) - np.log(second)) / alpha
    mixup_lambda: F64 = 1 / (1 + np.exp(-np.abs(odds)))
    return mixup_lambda


PixelRange = tuple[int, int]  # start and stop


@dataclass(frozen=True)
class CutmixBox:
    """The region of a square image that CutMix replaces by another image."""

    rows: PixelRange
    columns: PixelRange
    image_size: int

    @property
    def lam(self) -> float:
        """The fraction of the image outside the box."""
        (top, bottom), (left, right) = self.rows, self.columns
        return 1 - (bottom - top) * (right - left) / self.image_size**2


@dataclass(frozen=True)
class Mix:
    samples: int
    mixup_lambda: F64 | None = None  # (micro,): weight of each image in its mixup, exact in float32
    box: CutmixBox | None = None

    @property
    def _cutmix_shift(self) -> int:
        """How many positions before an image the source of its box is. Mixup uses a shift of 1."""
        return 1 if self.samples == 2 else 2

    def apply_channels_first(self, images: Tensor) -> Tensor:
        """Mix images of (micro, channels, height, width); only strides change, no copy."""
        return self.apply(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def apply(self, images: Tensor) -> Tensor:
        """Mix images of (micro, height, width, channels) without modifying the input.

        Each operation rounds separately, so host and device give identical bits.
        """
        if self.mixup_lambda is not None:
            lam = torch.from_numpy(self.mixup_lambda.astype(np.float32)).to(images.device)
            lam = lam.view(-1, 1, 1, 1)
            images = (images * lam).add_(images.roll(1, 0).mul_(1 - lam))
        if self.box is not None:
            assert images.shape[1:3] == (self.box.image_size, self.box.image_size)
            rows, columns = slice(*self.box.rows), slice(*self.box.columns)
            patches = images[:, rows, columns].roll(self._cutmix_shift, 0)
            images = images.clone()
            images[:, rows, columns] = patches
        return images

    def mix_targets(self, labels: Tensor) -> MixedTargets:
        """Return the labels and their weights, both (parts, micro), for labels of (micro,)."""
        # Each part is the distance to the image that the label comes from, and the weight.
        parts = [(0, np.ones(self.samples))]
        if self.mixup_lambda is not None:
            parts = [(0, self.mixup_lambda), (1, 1 - self.mixup_lambda)]
        if self.box is not None:
            lam, shift = self.box.lam, self._cutmix_shift
            patch = [(back + shift, (1 - lam) * np.roll(weight, shift)) for back, weight in parts]
            parts = [*((back, lam * weight) for back, weight in parts), *patch]
        weights = torch.from_numpy(np.stack([weight for _, weight in parts]).astype(np.float32))
        mixed_labels = torch.stack([labels.roll(back) for back, _ in parts])
        return MixedTargets(mixed_labels, weights.to(labels.device))


@dataclass(frozen=True)
class Mixing:
    """Samples how the micro-batches of a run are mixed."""

    config: MixingConfig
    seed: int
    image_size: int

    def sample(self, epoch: int, number: int, samples: int) -> Mix | None:
        """Return how to mix micro-batch `number` of an epoch; None if it is not mixed."""
        lam, alpha = None, self.config.mixup_alpha
        if alpha:
            stream = key(self.seed, "mixup", epoch)
            rand = sample_mixup_lambda(alpha, stream, number, np.arange(samples))
            lam = rand.astype(np.float32).astype(np.float64)
        box = self._sample_box(epoch, number) if self.config.uses_cutmix else None
        return None if lam is None and box is None else Mix(samples, lam, box)

    def _sample_box(self, epoch: int, number: int) -> CutmixBox | None:
        """Sample a CutMix box; None if CutMix is skipped or the box is empty."""
        rand = uniform(key(self.seed, "cutmix", epoch), number, np.arange(5)).tolist()
        disabled, first, second, row_rand, column_rand = rand
        if disabled < self.config.cutmix_disable_prob:
            return None
        extent = self.image_size * math.sqrt(1 - sample_cutmix_lambda(self.config, first, second))
        rows, columns = self._sample_span(extent, row_rand), self._sample_span(extent, column_rand)
        box = CutmixBox(rows, columns, self.image_size)
        return box if box.lam < 1 else None

    def _sample_span(self, extent: float, rand: float) -> PixelRange:
        """Place the box along one axis, rounded to pixels.

        Uniform inside the image; in the TensorFlow versions the center is uniform over the image
        and the box is then moved inside.
        """
        max_start = self.image_size - extent
        start = rand * max_start
        if self.config.cutmix_version is not None:
            start = min(max(rand * self.image_size - extent / 2, 0.0), max_start)
        return round(start), round(start + extent)


def sample_cutmix_lambda(config: MixingConfig, first: float, second: float) -> float:
    """Sample the fraction of the image that CutMix leaves, from two uniform numbers."""
    low, high = config.cutmix_lambda_low, config.cutmix_lambda_high
    match config.cutmix_version:
        case None:
            return low + (high - low) * first
        case 1:
            if first < 1.55 * low - 0.96:
                return 1.0
            least = math.exp(-4)
            return 1 + math.log(least + (1 - least) * second) / 4
        case _:
            return low


NO_MIXING = Mixing(MixingConfig(), seed=0, image_size=1)
