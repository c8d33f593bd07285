"""Micro-batch × accumulation × replicas: how samples become updates.

In: three counts and the number of samples. Out: samples per update, updates per epoch and per
run. Every epoch holds the same whole number of updates; samples that fill no update are left out
of it.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from convoy.errors import ConfigError


@dataclass(frozen=True)
class BatchPlan:
    """How samples are grouped. `gradient_accumulation` is the micro-batches of one replica.

    `bn_span` replicas share their batch statistics. Their micro-batches of one moment are
    neighbors in the order of samples: what one micro-batch of N-fold size would hold.

        2 accumulated × 4 replicas    span 1: 01 | 23 | 45 | 67    span 2: 02 | 13 | 46 | 57
    """

    micro_batch_size: int
    gradient_accumulation: int
    replicas: int
    bn_span: int = 1

    def __post_init__(self) -> None:
        assert min(self.micro_batch_size, self.gradient_accumulation, self.replicas) >= 1
        assert self.bn_span >= 1 and self.replicas % self.bn_span == 0

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one update, all replicas together."""
        return self.gradient_accumulation * self.replicas

    @property
    def samples_per_update(self) -> int:
        return self.micro_batch_size * self.micro_batches

    def micro_batches_of(self, replica: int) -> range:
        """The micro-batches, counted over all replicas, that one replica computes, in order.

        A block of neighbors; with a span, every N-th of the block that its partners have together.
        """
        assert 0 <= replica < self.replicas
        span, place = divmod(replica, self.bn_span)
        block = self.gradient_accumulation * self.bn_span
        return range(span * block + place, (span + 1) * block, self.bn_span)

    def updates_per_epoch(self, samples: int) -> int:
        """Whole updates in one pass over the samples."""
        updates = samples // self.samples_per_update
        if updates == 0:
            raise ConfigError(
                f"one update needs {self.samples_per_update} samples "
                f"({self.micro_batch_size} micro × {self.gradient_accumulation} accumulated × "
                f"{self.replicas} replicas) but the source has {samples}; "
                "lower --micro-batch-size, --gradient-accumulation or --replicas"
            )
        return updates

    def total_updates(self, samples: int, epochs: float) -> int:
        """Whole updates of a run; part of an epoch counts, and there is at least one update."""
        if not (math.isfinite(epochs) and epochs > 0):
            raise ConfigError(f"--epoch must be a number above 0, got {epochs}")
        # The decimal as typed: 0.29 epochs of 100 updates are 29, in binary 28.99….
        exact = Fraction(str(epochs)) * self.updates_per_epoch(samples)
        return max(1, math.floor(exact))
