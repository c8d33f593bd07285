"""The arrays of a batch of samples, the two splits of a data set, and its normalization."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]  # (batch,)
Labels = npt.NDArray[np.int64]  # (batch,)
Pixels = npt.NDArray[np.uint8]  # (batch, height, width, 3): channels last
Split = Literal["train", "validation"]


@dataclass(frozen=True)
class Normalization:
    """Mean and deviation of each channel, for pixels scaled to 0 … 1."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    def without_deviation(self) -> "Normalization":
        """Pixels of 0 … 255 lose their mean and keep their spread."""
        return Normalization(self.mean, (1 / 255, 1 / 255, 1 / 255))
