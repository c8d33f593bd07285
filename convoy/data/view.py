"""Samples as the network gets them: whatever the source, one size, bytes."""

from dataclasses import dataclass
from typing import Protocol

from convoy.data.augment import Augmentation
from convoy.data.source import Ids, Pixels, Source

Unread = tuple[int, ...]  # places in a batch whose own sample could not be read


class View(Protocol):
    """A pure function of ids and epoch (the seed is inside), safe from any thread."""

    @property
    def size(self) -> int:
        """The side of the images."""

    def __call__(self, ids: Ids, epoch: int, out: Pixels) -> Unread:
        """Fill `out` with the images; tells where another sample had to stand in."""


@dataclass(frozen=True)
class Plain:
    """The images as they are."""

    source: Source

    @property
    def size(self) -> int:
        return self.source.image_size

    def __call__(self, ids: Ids, epoch: int, out: Pixels) -> Unread:
        del epoch
        out[:] = self.source.pixels(ids)
        return ()


@dataclass(frozen=True)
class Augmented:
    """The images of an epoch, each changed by chance."""

    source: Source
    augmentation: Augmentation
    seed: int

    @property
    def size(self) -> int:
        return self.source.image_size

    def __call__(self, ids: Ids, epoch: int, out: Pixels) -> Unread:
        out[:] = self.augmentation(self.source.pixels(ids), ids, self.seed, epoch)
        return ()
