"""Which samples an update takes: a pure function of (seed, epoch, position)."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from convoy.data.source import Ids
from convoy.plan.topology import BatchPlan
from convoy.rng import key, permutation


@dataclass(frozen=True)
class MicroBatchIndex:
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
    first_epoch: int = 0  # of this phase, when others came before

    @property
    def updates_per_epoch(self) -> int:
        return self.batch.updates_per_epoch(self.samples)

    def epoch(self, index: MicroBatchIndex) -> int:
        return self.first_epoch + index.update // self.updates_per_epoch

    def number(self, index: MicroBatchIndex) -> int:
        """The number of the micro-batch within its epoch, counted over all replicas."""
        assert 0 <= index.micro < self.batch.micro_batches
        update = index.update % self.updates_per_epoch
        return update * self.batch.micro_batches + index.micro

    def ids(self, index: MicroBatchIndex) -> Ids:
        """The sample ids of one micro-batch."""
        size = self.batch.micro_batch_size
        start = self.number(index) * size
        ids = _shuffled(self.seed, self.epoch(index), self.samples)[start : start + size]
        return ids if self.chosen is None else self.chosen[ids]


def some_of(samples: int, used: int) -> Ids:
    """A subset, spread evenly: the same for every seed, and larger ones contain smaller ones."""
    return np.sort(permutation(key("some of the samples"), samples)[:used])


@lru_cache(maxsize=4)  # the workers are at most two epochs apart
def _shuffled(seed: int, epoch: int, samples: int) -> Ids:
    order = permutation(key(seed, "order", epoch), samples)
    order.setflags(write=False)
    return order
