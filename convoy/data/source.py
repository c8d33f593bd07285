"""What every data set offers: labels, and views of its images for training and validation."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from convoy.config.sections.data import DataConfig
from convoy.data.records.ledger import Ledger

Ids = npt.NDArray[np.int64]  # (batch,)
Labels = npt.NDArray[np.int64]  # (batch,)
Pixels = npt.NDArray[np.uint8]  # (batch, height, width, 3): channels last
Split = Literal["train", "validation"]
Unread = tuple[int, ...]  # positions in a batch whose own sample could not be read
OnStep = Callable[[str], None]  # is called with the name of each step of the work when it is done


@dataclass(frozen=True)
class Normalization:
    """Mean and deviation of each channel, for pixels scaled to 0 … 1."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]


def no_steps(step: str) -> None:
    """For callers that do not measure the steps."""


class View(Protocol):
    """Samples as the network gets them: images of one size, as bytes, and labels.

    A pure function of ids and epoch (the seed is inside), safe to call from any thread.
    """

    @property
    def size(self) -> int:
        """Height and width of the images."""

    def __len__(self) -> int: ...

    def labels(self, ids: Ids) -> Labels: ...

    def __call__(self, ids: Ids, epoch: int, out: Pixels, on_step: OnStep = no_steps) -> Unread:
        """Write the images to `out`; returns where another sample had to stand in."""


class Source(ABC):
    """One split of a data set. Reading is a pure function of the ids, safe from any thread."""

    class_names: tuple[str, ...]
    normalization: Normalization

    @property
    def mean_only(self) -> Normalization:
        """The normalization of applications that only subtract the mean."""
        return Normalization(self.normalization.mean, (1 / 255, 1 / 255, 1 / 255))

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def labels(self, ids: Ids) -> Labels: ...

    @abstractmethod
    def content(self, ids: Ids) -> bytes:
        """Bytes that tell these images from others."""

    @abstractmethod
    def training_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        """Augmented images. Without a ledger, a record that cannot be read ends the run."""

    @abstractmethod
    def validation_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        """The same images in every epoch."""
