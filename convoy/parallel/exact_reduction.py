"""The exact sum over replicas: the tree of all micro-batches, each replica adding up one shard.

    replica 0   nodes ▓▓▓|░░░|░░░      Each sends to replica c what it has of shard c (its few
replica 1   nodes ░░░|▓▓▓|░░░      nodes, known beforehand), receives its own shard (▓) from
replica 2   nodes ░░░|░░░|▓▓▓      all, folds the tree for it, and sends the result to all.

With an accumulation of a power of two, a replica has one node and sends as much as in a ring
all-reduce. A shard travels in portions: while one is folded, the next is under way. A portion
takes the same stretch of every shard, so all replicas have equal work, with sharded state and
without.
"""

from dataclasses import dataclass
from functools import cache
from itertools import chain

import torch
from torch import Tensor

from convoy.numerics.gradients import GradientTree, Node, Reduction, Span, fold, spans_of
from convoy.parallel.reducer import UNDER_WAY, Peers, Pending, Shards, portion_size
from convoy.parallel.replicas import Together, slice_of

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


class ExactReplicas(Together):
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
            sharded=self.meeting.sharded,
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
