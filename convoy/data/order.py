"""Which samples an update takes: a pure function of (seed, epoch, position)."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from convoy.chance import key, permutation
from convoy.data.source import Ids
from convoy.plan.batch import BatchPlan


@dataclass(frozen=True)
class Place:
    """One micro-batch of the run: its update (from 0) and its number within the update."""

    update: int
    micro: int  # counted over all replicas: `BatchPlan.micro_batches_of` says who computes it


@dataclass(frozen=True)
class Order:
    """The order of the samples over the whole run. What does not fill an update is left out."""

    samples: int
    batch: BatchPlan
    seed: int
    chosen: Ids | None = None  # the samples that are used; None: all
    first_epoch: int = 0  # others came before

    @property
    def updates_per_epoch(self) -> int:
        return self.batch.updates_per_epoch(self.samples)

    def epoch(self, place: Place) -> int:
        return self.first_epoch + place.update // self.updates_per_epoch

    def number(self, place: Place) -> int:
        """Of the micro-batch within its epoch, whoever computes it."""
        assert 0 <= place.micro < self.batch.micro_batches
        within = place.update % self.updates_per_epoch
        return within * self.batch.micro_batches + place.micro

    def ids(self, place: Place) -> Ids:
        """The sample ids of one micro-batch."""
        size = self.batch.micro_batch_size
        start = self.number(place) * size
        ids = _shuffled(self.seed, self.epoch(place), self.samples)[start : start + size]
        return ids if self.chosen is None else self.chosen[ids]


def some_of(samples: int, used: int) -> Ids:
    """So many of all samples, spread evenly: the same for every seed, more contain the fewer."""
    return np.sort(permutation(key("some of the samples"), samples)[:used])


@lru_cache(maxsize=4)  # the workers stand at most two epochs apart
def _shuffled(seed: int, epoch: int, samples: int) -> Ids:
    order = permutation(key(seed, "order", epoch), samples)
    order.setflags(write=False)
    return order
