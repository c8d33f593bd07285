"""The feed of a run, emptied as fast as it can be by one consumer that does nothing else."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from mmap import mmap
from time import perf_counter

import numpy as np
from torch import Tensor

from convoy.assemble.open_feed import OpenFeed
from convoy.report.feed_speed import EpochSpeed

ELEMENTS = 512  # of an epoch, if it has so many: what the reference's program measures


@dataclass(frozen=True)
class BenchWish:
    """How long, and whether each element is copied, as on its way to a device."""

    epochs: int = 2
    elements: int | None = None  # of an epoch
    copy: bool = True


def bench_feed(opened: OpenFeed, wish: BenchWish) -> Iterator[EpochSpeed]:
    """One result for each epoch. The feed goes on over their borders, as in training."""
    elements = wish.elements or min(ELEMENTS, opened.elements_per_epoch)
    places = opened.places(0, wish.epochs * elements)
    take = _Buffer().take if wish.copy else _size
    images = elements * opened.plan.batch.micro_batch_size
    with closing(opened.feed.on_host(places, opened.hands)) as stream:
        for _ in range(wish.epochs):
            began = perf_counter()
            taken = sum(
                take(one)
                for element in islice(stream, elements)
                for one in (element.images, element.labels)
                if one is not None
            )
            yield EpochSpeed(elements, taken, perf_counter() - began, images)


def _size(tensor: Tensor) -> int:
    return tensor.nbytes


class _Buffer:
    """One place in memory, on pages of its own, that everything is copied to."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def take(self, tensor: Tensor) -> int:
        """How many bytes were copied."""
        if tensor.nbytes > len(self._bytes):
            self._bytes = np.frombuffer(mmap(-1, tensor.nbytes), np.uint8)
        np.copyto(self._bytes[: tensor.nbytes], tensor.numpy().reshape(-1).view(np.uint8))
        return tensor.nbytes
