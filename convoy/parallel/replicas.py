"""Replicas agree: on one gradient before each update, on weights and statistics after it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from convoy.errors import NumericError
from convoy.numerics.gradients import GradientTree, Node, Reduction, fold
from convoy.parallel.reducer import (
    UNDER_WAY,
    Exchange,
    Peers,
    Pending,
    Portion,
    Shards,
    portion_size,
)


def check_agreement(digests: Sequence[bytes], ranks: Sequence[int], update: int) -> None:
    """Refuse to go on if some replica's digest differs from what most of them hold."""
    odd = odd_ones(digests)
    if not odd:
        return
    who = "; ".join(f"replica {one} (rank {ranks[one]}): {digests[one].hex()[:12]}…" for one in odd)
    even = next(one for one in range(len(digests)) if one not in odd)
    raise NumericError(
        f"after update {update} the weights are no longer the same everywhere: {who}, but replica "
        f"{even} (rank {ranks[even]}): {digests[even].hex()[:12]}…; nothing was saved since, so "
        "check the memory of that machine and go on from the last checkpoint with `convoy resume`"
    )


def odd_ones(digests: Sequence[bytes]) -> list[int]:
    """Replicas that are not like most; of two equally large camps the one with replica 0 is right.

    Two replicas can only tell that they differ: then the second is named, and the first as well.
    """
    most = max(digests, key=digests.count)  # the first of equals
    return [replica for replica, digest in enumerate(digests) if digest != most]


class Replicas(Protocol):
    """What the loop knows of the replicas of its stage."""

    def owned(self, elements: int) -> range:
        """The part of a flat vector whose state lives here and which is updated here."""

    def follow(self, tree: GradientTree) -> None:
        """From now on begin to reduce this tree's gradient before its last backward ends."""

    def reduce(self, tree: GradientTree) -> Tensor:
        """The gradient of all micro-batches of all replicas as one, of the owned range.

        The tree says how they become one: nearly always, their mean.
        """

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

    def follow(self, tree: GradientTree) -> None:
        """Nothing to begin."""

    def reduce(self, tree: GradientTree) -> Tensor:
        total = fold(tree.nodes(), tree.reduction)
        return tree.for_weights(tree.reduction.finish(total, tree.leaves, out=total))

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
    buffer_bytes: int  # most memory for messages of one stage under way
    # Begin during the last backward. Two replicas of one thread on two cores gained nothing by it
    # (`benchmarks/reduction.py`): there, what carries messages takes its time from the backward.
    overlapped: bool = False


class Together(ABC):
    """What exact and fast replicas share: everything but the sum."""

    def __init__(self, peers: Peers, meeting: Meeting) -> None:
        self.peers = peers
        self.meeting = meeting
        self._exchanges: dict[tuple[GradientTree, int], Exchange] = {}

    @abstractmethod
    def portions(self, tree: GradientTree, leaves: int, subject: int) -> Sequence[Portion]:
        """How the gradient of a tree with so many leaves travels."""

    def follow(self, tree: GradientTree) -> None:
        if self.meeting.overlapped and tree.expected is not None:
            tree.watch(self.exchange_of(tree, tree.expected).begin_ready)

    def exchange_of(self, tree: GradientTree, leaves: int) -> Exchange:
        """Each tree has its own, under its own subject, in the order in which they came."""
        if (tree, leaves) not in self._exchanges:
            subject = len(self._exchanges) + 1
            portions = self.portions(tree, leaves, subject)
            self._exchanges[tree, leaves] = Exchange(tree, portions)
        return self._exchanges[tree, leaves]

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


@dataclass(frozen=True)
class _Stretch:
    """A portion that torch adds up."""

    peers: Peers
    reduction: Reduction
    elements: range

    def stretches(self) -> list[range]:
        return [self.elements]

    def begin(self, mine: list[Node], slot: int) -> Pending:
        del slot  # the sum is made in place
        part = slice_of(self.elements)
        own = fold((Node(node.span, node.vector[part]) for node in mine), self.reduction)
        return self.peers.add_up(self.reduction.share(own, self.peers.replicas))

    def settle(self, mine: list[Node], slot: int) -> Pending:
        """The sum lies where our first node was."""
        del mine, slot
        return Pending([])


class FastReplicas(Together):
    """Adds in the order that is quickest: other layouts differ in the last bits."""

    def portions(self, tree: GradientTree, leaves: int, subject: int) -> list[_Stretch]:
        del leaves, subject  # torch numbers its sums itself
        elements, limit = tree.flat.elements, self.meeting.buffer_bytes
        size = portion_size(elements, UNDER_WAY, limit, tree.dtype.itemsize)
        return [
            _Stretch(self.peers, tree.reduction, range(first, min(first + size, elements)))
            for first in range(0, elements, size)
        ]

    @torch.no_grad()
    def reduce(self, tree: GradientTree) -> Tensor:
        self.exchange_of(tree, tree.leaves).finish()
        total = tree.nodes()[0].vector[slice_of(self.owned(tree.flat.elements))]
        micro_batches = tree.leaves * self.peers.replicas
        return tree.for_weights(tree.reduction.finish(total, micro_batches, out=total))


def slice_of(elements: range) -> slice:
    return slice(elements.start, elements.stop)
