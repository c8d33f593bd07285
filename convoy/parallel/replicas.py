"""Replicas agree: on one gradient before each update, on weights and statistics after it.

The exact sum is the tree of all micro-batches, each replica adding up one shard:

    replica 0   nodes ▓▓▓|░░░|░░░      Each sends to replica c what it has of shard c (its few
    replica 1   nodes ░░░|▓▓▓|░░░      nodes, known beforehand), receives its own shard (▓) from
    replica 2   nodes ░░░|░░░|▓▓▓      all, folds the tree for it, and sends the result to all.

With an accumulation of a power of two, a replica has one node and sends as much as in a ring
all-reduce. A shard travels in portions: while one is folded, the next is under way. A portion
takes the same stretch of every shard, so all replicas have equal work, with sharded state and
without.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import torch
from torch import Tensor

from convoy.errors import NumericError
from convoy.numerics.flat import ALIGNMENT
from convoy.numerics.gradients import GradientTree, Node, Reduction, Span, fold, spans_of
from convoy.parallel.collectives import (
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


class Replicas:
    """What the loop knows of the replicas of its stage; here there is only one."""

    sharded = False  # each replica owns a range of its own, which may be empty

    def owned(self, elements: int) -> range:
        """The part of a flat vector whose state lives here and which is updated here."""
        return range(elements)

    def follow(self, tree: GradientTree) -> None:
        """From now on begin to reduce this tree's gradient before its last backward ends."""

    def reduce(self, tree: GradientTree) -> Tensor:
        """The gradient of all micro-batches of all replicas as one, of the owned range.

        The tree says how they become one: nearly always, their mean.
        """
        total = fold(tree.nodes(), tree.reduction)
        return tree.for_weights(tree.reduction.finish(total, tree.leaves, out=total))

    def share(self, values: Tensor) -> None:
        """Complete a flat vector whose owned range is new."""

    def gather_statistics(self, statistics: Tensor) -> Tensor:
        """Rows of our micro-batches → rows of all micro-batches, in their order."""
        return statistics

    def agree(self, digest: Callable[[], bytes], update: int) -> None:
        """End the run if a replica holds other weights than the rest."""


@dataclass(frozen=True)
class Meeting:
    """How replicas meet."""

    sharded: bool  # each replica keeps the optimizer's state of its own shard alone
    buffer_bytes: int  # most memory for messages of one stage under way
    # Begin during the last backward. Two replicas of one thread on two cores gained nothing by it
    # (`benchmarks/reduction.py`): there, what carries messages takes its time from the backward.
    overlapped: bool = False


class ReplicaGroup(Replicas, ABC):
    """What exact and fast replicas share: everything but the sum."""

    def __init__(self, peers: Peers, meeting: Meeting) -> None:
        self.peers = peers
        self.meeting = meeting
        self.sharded = meeting.sharded
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
        return mine if self.sharded else range(elements)

    def share(self, values: Tensor) -> None:
        """Each replica sends its shard; without shards every replica has made the whole update."""
        if not self.sharded:
            return
        shards = self.shards(len(values))
        parts = [values[slice_of(shards.of(one))] for one in range(self.peers.replicas)]
        own = parts[self.peers.replica]
        sent = [(peer, own) for peer in self.peers.others]
        self.peers.exchange(sent, [(peer, parts[peer]) for peer in self.peers.others]).wait()

    def gather_statistics(self, statistics: Tensor) -> Tensor:
        return self.peers.gather(statistics).flatten(0, 1)

    def agree(self, digest: Callable[[], bytes], update: int) -> None:
        own = torch.frombuffer(bytearray(digest()), dtype=torch.uint8)
        digests = [bytes(one.tolist()) for one in self.peers.gather(own)]
        check_agreement(digests, self.peers.ranks, update)


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


class FastReplicas(ReplicaGroup):
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


_Spans = tuple[tuple[Span, ...], ...]  # by replica


@dataclass(frozen=True)
class _Route:
    """What all portions of a tree have in common."""

    peers: Peers
    shards: Shards
    micro_batches: int  # of all replicas
    reduction: Reduction
    sharded: bool  # the owner of a result keeps it to itself
    subject: int  # of its messages
    inboxes: list[list[list[Node]]]  # by slot and replica; our own place is empty


@dataclass(frozen=True)
class _Portion:
    """One stretch of every shard: ours comes in from all, the others' go out."""

    route: _Route
    first: int  # element of the shard
    size: int

    def stretches(self) -> list[range]:
        slices = [self._slice(one) for one in range(self.route.peers.replicas)]
        return [range(one.start, one.stop) for one in slices]

    def begin(self, mine: list[Node], slot: int) -> Pending:
        """Send the others their stretches of our nodes, and receive theirs of ours."""
        peers = self.route.peers
        sent = [(peer, self._of(node.vector, peer)) for peer in peers.others for node in mine]
        nodes = self._nodes(mine, slot)
        received = [(peer, node.vector) for peer in peers.others for node in nodes[peer]]
        return peers.exchange(sent, received, self.route.subject)

    def settle(self, mine: list[Node], slot: int) -> Pending:
        """The result for our stretch, written where our first node was, then sent to everybody."""
        peers, result = self.route.peers, mine[0].vector
        own, reduction = self._of(result, peers.replica), self.route.reduction
        total = fold(chain.from_iterable(self._nodes(mine, slot)), reduction)
        reduction.finish(total, self.route.micro_batches, out=own)
        if self.route.sharded:
            return Pending([])
        sent = [(peer, own) for peer in peers.others]
        received = [(peer, self._of(result, peer)) for peer in peers.others]
        return peers.exchange(sent, received, self.route.subject)

    def _nodes(self, mine: list[Node], slot: int) -> list[list[Node]]:
        """Every replica's nodes of our stretch."""
        own = self.route.peers.replica
        ours = [Node(node.span, self._of(node.vector, own)) for node in mine]
        length = len(ours[0].vector)
        nodes = [[_begin_of(node, length) for node in one] for one in self.route.inboxes[slot]]
        nodes[own] = ours
        return nodes

    def _of(self, vector: Tensor, replica: int) -> Tensor:
        return vector[self._slice(replica)]

    def _slice(self, replica: int) -> slice:
        return self.route.shards.portion(replica, self.first, self.size)


class ExactReplicas(ReplicaGroup):
    """Any split of an update's micro-batches into replicas gives the same bits."""

    def portions(self, tree: GradientTree, leaves: int, subject: int) -> list[_Portion]:
        shards, replicas = self.shards(tree.flat.elements), self.peers.replicas
        spans = _spans_by_replica(leaves, replicas)
        # The most that any replica receives: all must cut their shards alike.
        counts = [len(theirs) for theirs in spans]
        rows = sum(counts) - min(counts)
        limit, element = self.meeting.buffer_bytes, tree.dtype.itemsize
        size = portion_size(shards.size, UNDER_WAY * max(1, rows), limit, element)
        device = tree.flat.values.device
        memory = torch.empty((UNDER_WAY, rows, size), dtype=tree.dtype, device=device)
        inboxes = [self._inbox(spans, slot) for slot in memory]
        route = _Route(
            peers=self.peers,
            shards=shards,
            micro_batches=leaves * replicas,
            reduction=tree.reduction,
            sharded=self.sharded,
            subject=subject,
            inboxes=inboxes,
        )
        return [_Portion(route, first, size) for first in range(0, shards.size, size)]

    @torch.no_grad()
    def reduce(self, tree: GradientTree) -> Tensor:
        self.exchange_of(tree, tree.leaves).finish()
        result = tree.nodes()[0].vector
        return tree.for_weights(result[slice_of(self.owned(len(result)))])

    def _inbox(self, spans: _Spans, memory: Tensor) -> list[list[Node]]:
        """The rows of one slot, handed out in the order in which messages are posted."""
        rows = iter(memory)
        return [
            [] if replica == self.peers.replica else [Node(span, next(rows)) for span in theirs]
            for replica, theirs in enumerate(spans)
        ]


def _begin_of(node: Node, length: int) -> Node:
    return Node(node.span, node.vector[:length])


@cache
def _spans_by_replica(leaves: int, replicas: int) -> _Spans:
    return tuple(tuple(spans_of(replica * leaves, leaves)) for replica in range(replicas))


def gatherer(replicas: Replicas, elements: int) -> Callable[[Tensor], Tensor]:
    """What makes a whole vector of every replica's owned range. All replicas must call it."""

    def gather(part: Tensor) -> Tensor:
        if not replicas.sharded:
            return part
        owned = replicas.owned(elements)
        whole = torch.zeros(elements, dtype=part.dtype, device=part.device)
        whole[owned.start : owned.stop] = part
        replicas.share(whole)
        return whole

    return gather


def row_gatherer(replicas: Replicas, shards: Shards) -> Callable[[Tensor], Tensor]:
    """What makes of every owner's rows, one for each 16 elements, those of the whole vector."""

    def gather(rows: Tensor) -> Tensor:
        if not replicas.sharded:
            return rows
        padded = rows.new_zeros(shards.size // ALIGNMENT, *rows.shape[1:])
        padded[: len(rows)] = rows
        return replicas.gather_statistics(padded)[: shards.elements // ALIGNMENT]

    return gather
