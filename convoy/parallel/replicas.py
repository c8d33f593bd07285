"""Replicas agree: on the mean gradient before each update, on weights and statistics after it.

One face, three kinds. `Alone` has nobody to meet; `ExactReplicas` add along the tree of all
micro-batches, so the bits are those of one replica; `FastReplicas` add as torch likes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from convoy.numerics.gradients import GradientTree, fold
from convoy.parallel.agreement import check_agreement
from convoy.parallel.peers import Peers
from convoy.parallel.sharding import Shards


class Replicas(Protocol):
    """What the loop knows of the replicas of its stage."""

    def owned(self, elements: int) -> range:
        """The part of a flat vector whose state lives here and which is updated here."""

    def reduce(self, tree: GradientTree) -> Tensor:
        """The mean gradient over all micro-batches of all replicas, of the owned range."""

    def share(self, values: Tensor) -> None:
        """Complete a flat vector whose owned range is new."""

    def gather_statistics(self, statistics: Tensor) -> Tensor:
        """Rows of our micro-batches → rows of all micro-batches, in their order."""

    def agree(self, digest: Callable[[], bytes], update: int) -> None:
        """End the run if a replica holds other weights than the rest."""


class Alone:
    """The replica group of a run that has only one."""

    def owned(self, elements: int) -> range:
        return range(elements)

    def reduce(self, tree: GradientTree) -> Tensor:
        return fold(tree.nodes()).div_(tree.leaves)

    def share(self, values: Tensor) -> None:
        """Everything is here."""

    def gather_statistics(self, statistics: Tensor) -> Tensor:
        return statistics

    def agree(self, digest: Callable[[], bytes], update: int) -> None:
        """Nobody to differ from, so the digest is not even computed."""


@dataclass(frozen=True)
class Meeting:
    """How replicas meet."""

    sharded: bool  # each replica keeps the optimizer's state of its own shard alone
    buffer_bytes: int  # most memory for messages under way


class Together:
    """What exact and fast replicas share: everything but the sum."""

    def __init__(self, peers: Peers, meeting: Meeting) -> None:
        self.peers = peers
        self.meeting = meeting

    def shards(self, elements: int) -> Shards:
        return Shards(elements, self.peers.replicas)

    def owned(self, elements: int) -> range:
        mine = self.shards(elements).of(self.peers.replica)
        return mine if self.meeting.sharded else range(elements)

    def share(self, values: Tensor) -> None:
        """Each replica sends its shard; without shards every replica has made the whole update."""
        if not self.meeting.sharded:
            return
        parts = [values[slice_of(self.shards(len(values)).of(one))] for one in self._all]
        own = parts[self.peers.replica]
        sent = [(peer, own) for peer in self.peers.others]
        self.peers.exchange(sent, [(peer, parts[peer]) for peer in self.peers.others]).wait()

    def gather_statistics(self, statistics: Tensor) -> Tensor:
        return self.peers.gather(statistics).flatten(0, 1)

    def agree(self, digest: Callable[[], bytes], update: int) -> None:
        own = torch.frombuffer(bytearray(digest()), dtype=torch.uint8)
        digests = [bytes(one.tolist()) for one in self.peers.gather(own)]
        check_agreement(digests, self.peers.ranks, update)

    @property
    def _all(self) -> range:
        return range(self.peers.replicas)


class FastReplicas(Together):
    """Adds in the order that is quickest: other layouts differ in the last bits."""

    def reduce(self, tree: GradientTree) -> Tensor:
        total = fold(tree.nodes())
        portion = max(1, self.meeting.buffer_bytes // total.element_size())
        self.peers.add_up(total, portion)
        owned = self.owned(len(total))
        return total[slice_of(owned)].div_(tree.leaves * self.peers.replicas)


def slice_of(elements: range) -> slice:
    return slice(elements.start, elements.stop)
