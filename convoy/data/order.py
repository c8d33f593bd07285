"""Which samples an update takes: a pure function of (seed, epoch, position)."""

from dataclasses import dataclass
from functools import lru_cache

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

    @property
    def updates_per_epoch(self) -> int:
        return self.batch.updates_per_epoch(self.samples)

    def epoch(self, place: Place) -> int:
        return place.update // self.updates_per_epoch

    def ids(self, place: Place) -> Ids:
        """The sample ids of one micro-batch."""
        assert 0 <= place.micro < self.batch.micro_batches
        size = self.batch.micro_batch_size
        within = place.update % self.updates_per_epoch
        start = within * self.batch.samples_per_update + place.micro * size
        return _shuffled(self.seed, self.epoch(place), self.samples)[start : start + size]


@lru_cache(maxsize=4)  # the workers stand at most two epochs apart
def _shuffled(seed: int, epoch: int, samples: int) -> Ids:
    order = permutation(key(seed, "order", epoch), samples)
    order.setflags(write=False)
    return order
