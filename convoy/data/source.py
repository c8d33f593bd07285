"""The face of every data source: random access by sample id, pixels as bytes."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]  # (batch,)
Pixels = npt.NDArray[np.uint8]  # (batch, height, width, 3): rows of pixels, as cameras give them
Split = Literal["train", "validation"]
Labels = npt.NDArray[np.int64]  # (batch,)


@dataclass(frozen=True)
class Normalization:
    """Mean and deviation of each channel, for pixels scaled to 0 … 1."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    def without_deviation(self) -> "Normalization":
        """Pixels of 0 … 255 lose their mean and keep their spread."""
        return Normalization(self.mean, (1 / 255, 1 / 255, 1 / 255))


class Source(Protocol):
    """One split of a data set. Reading is a pure function of the ids, safe from any thread."""

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def image_size(self) -> int: ...

    @property
    def normalization(self) -> Normalization: ...

    def __len__(self) -> int: ...

    def pixels(self, ids: Ids) -> Pixels: ...

    def labels(self, ids: Ids) -> Labels: ...
