"""Samples as the network gets them: whatever the source, one size, bytes, ready to be mixed."""

from typing import Protocol

from convoy.data.source import Ids, Pixels


class View(Protocol):
    """A pure function of ids and epoch (the seed is inside), safe from any thread."""

    def __call__(self, ids: Ids, epoch: int) -> Pixels: ...
