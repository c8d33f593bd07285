"""Interfaces of a dataset: labels, and views of its images for training and validation."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from convoy.config.sections.data import DataConfig
from convoy.data.progress import no_op
from convoy.data.records.ledger import Ledger

Ids = npt.NDArray[np.int64]  # (batch,)
Labels = npt.NDArray[np.int64]  # (batch,)
Pixels = npt.NDArray[np.uint8]  # (batch, height, width, 3): channels last
Split = Literal["train", "validation"]
StepCallback = Callable[[str], None]  # called with the name of each finished step


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each channel, for pixels scaled to 0 … 1."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class View(Protocol):
    """Images as the network input: one size, as bytes.

    A pure function of ids and epoch (the seed is part of the view), and thread-safe.
    """

    @property
    def source(self) -> "Source":
        """The source of the images; it has the labels."""

    @property
    def size(self) -> int:
        """Height and width of the images."""

    def __call__(
        self, ids: Ids, epoch: int, out: Pixels, on_step: StepCallback = no_op
    ) -> tuple[int, ...]:
        """Write the images to `out`; return the positions of unreadable, replaced images."""


class Source(ABC):
    """One split of a dataset. Reading is a pure function of the ids, and thread-safe."""

    class_names: tuple[str, ...]
    normalization: Normalization
    is_normalized = False  # views write floats, to be used as they are

    @property
    def mean_normalization(self) -> Normalization:
        """The normalization that only subtracts the mean."""
        return Normalization(self.normalization.mean, (1 / 255, 1 / 255, 1 / 255))

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def labels(self, ids: Ids) -> Labels: ...

    @abstractmethod
    def content(self, ids: Ids) -> bytes:
        """Return bytes that identify these images."""

    @abstractmethod
    def training_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        """Return augmented images. Without a ledger, an unreadable record is an error."""

    @abstractmethod
    def validation_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        """Return images that are the same in every epoch."""
