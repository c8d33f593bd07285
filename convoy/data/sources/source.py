"""What every data set offers: labels, and views of its images for training and validation.

A data set whose images all have one size derives from `PixelSource` and adds `pixels`, `labels`
and `__len__`; `sources/open.py` opens it by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from convoy.config.sections.data import DataConfig
from convoy.data.augment import BY_DATA, NONE, Augmentation
from convoy.data.records.ledger import Ledger
from convoy.data.source import Ids, Labels, Normalization, Pixels

Unread = tuple[int, ...]  # positions in a batch whose own sample could not be read
OnStep = Callable[[str], None]  # is called with the name of each step of the work when it is done


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


class Source(Protocol):
    """One split of a data set. Reading is a pure function of the ids, safe from any thread."""

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def normalization(self) -> Normalization: ...

    @property
    def mean_only(self) -> Normalization:
        """The normalization of applications that only subtract the mean."""

    def __len__(self) -> int: ...

    def labels(self, ids: Ids) -> Labels: ...

    def content(self, ids: Ids) -> bytes:
        """Bytes that tell these images from others."""

    def training_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        """Augmented images. Without a ledger, a record that cannot be read ends the run."""

    def validation_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        """The same images in every epoch."""


class PixelSource(ABC):
    """A source whose images all have one size, and cannot be bad once it is open."""

    class_names: tuple[str, ...]
    image_size: int
    normalization: Normalization

    @property
    def mean_only(self) -> Normalization:
        return self.normalization.without_deviation()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def pixels(self, ids: Ids) -> Pixels: ...

    @abstractmethod
    def labels(self, ids: Ids) -> Labels: ...

    def content(self, ids: Ids) -> bytes:
        return np.ascontiguousarray(self.pixels(ids)).tobytes()

    def training_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        del size, ledger
        return PixelView(self, BY_DATA[config.data] if config.augment else NONE, config.seed)

    def validation_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        del config, size, ledger
        return PixelView(self)


@dataclass(frozen=True)
class PixelView:
    """The images of a `PixelSource`, augmented for each epoch."""

    source: PixelSource
    augmentation: Augmentation = NONE
    seed: int = 0

    @property
    def size(self) -> int:
        return self.source.image_size

    def __len__(self) -> int:
        return len(self.source)

    def labels(self, ids: Ids) -> Labels:
        return self.source.labels(ids)

    def __call__(self, ids: Ids, epoch: int, out: Pixels, on_step: OnStep = no_steps) -> Unread:
        pixels = self.source.pixels(ids)
        on_step("take")
        out[:] = self.augmentation(pixels, ids, self.seed, epoch)
        on_step("augment")
        return ()
