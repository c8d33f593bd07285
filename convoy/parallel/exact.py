"""The exact sum over replicas: the tree of all micro-batches, each replica adding up one shard.

    replica 0   nodes ▓▓▓|░░░|░░░      Each sends to replica c what it has of shard c (its few
    replica 1   nodes ░░░|▓▓▓|░░░      nodes, known beforehand), receives its own shard (▓) from
    replica 2   nodes ░░░|░░░|▓▓▓      all, folds the tree for it, and sends the mean to all.

With an accumulation of a power of two, a replica has one node and sends as much as in a ring
all-reduce. A shard travels in portions: while one is folded, the next is under way.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from convoy.numerics.gradients import GradientTree, Node, Span, fold, spans_of
from convoy.parallel.peers import Peers, Pending
from convoy.parallel.replicas import Meeting, Together, slice_of
from convoy.parallel.sharding import Shards, portion_size

_UNDER_WAY = 2  # portions: one is folded, one arrives


@dataclass(frozen=True)
class _Portion:
    """One stretch of every shard: ours comes in from all, the others' go out."""

    peers: Peers
    shards: Shards
    first: int  # element of the shard
    size: int
    inbox: list[list[Node]]  # by replica; our own place is empty

    def of(self, vector: Tensor, replica: int) -> Tensor:
        return vector[self.shards.portion(replica, self.first, self.size)]

    def nodes_from(self, replica: int, mine: list[Node]) -> list[Node]:
        """A replica's nodes of our stretch."""
        own = self.peers.replica
        if replica == own:
            return [Node(node.span, self.of(node.vector, own)) for node in mine]
        length = len(self.of(mine[0].vector, own))
        return [Node(node.span, node.vector[:length]) for node in self.inbox[replica]]

    def ask(self, mine: list[Node]) -> Pending:
        """Send the others their stretches of our nodes, and receive theirs of ours."""
        others = self.peers.others
        sent = [(peer, self.of(node.vector, peer)) for peer in others for node in mine]
        received = [(peer, node.vector) for peer in others for node in self.nodes_from(peer, mine)]
        return self.peers.exchange(sent, received)

    def add_up(self, mine: list[Node], micro_batches: int) -> None:
        """The mean of our stretch, written where our first node was: that one is spent."""
        replicas = range(self.peers.replicas)
        total = fold(node for one in replicas for node in self.nodes_from(one, mine))
        torch.div(total, micro_batches, out=self.of(mine[0].vector, self.peers.replica))

    def spread(self, mean: Tensor) -> Pending:
        """Send everybody the mean of our stretch, and receive theirs."""
        own, others = self.of(mean, self.peers.replica), self.peers.others
        sent = [(peer, own) for peer in others]
        return self.peers.exchange(sent, [(peer, self.of(mean, peer)) for peer in others])


class ExactReplicas(Together):
    """Any split of an update's micro-batches into replicas gives the same bits."""

    def __init__(self, peers: Peers, meeting: Meeting) -> None:
        super().__init__(peers, meeting)
        self._inbox = torch.empty(0)

    @torch.no_grad()
    def reduce(self, tree: GradientTree) -> Tensor:
        mine, micro_batches = tree.nodes(), tree.leaves * self.peers.replicas
        mean = mine[0].vector
        portions = self._portions(tree.leaves, mean)
        asked = [portion.ask(mine) for portion in portions[:1]]
        spread: list[Pending] = []
        for number, portion in enumerate(portions):
            asked += [following.ask(mine) for following in portions[number + 1 : number + 2]]
            asked.pop(0).wait()
            portion.add_up(mine, micro_batches)
            if not self.meeting.sharded:
                spread.append(portion.spread(mean))
        for pending in spread:
            pending.wait()
        return mean[slice_of(self.owned(len(mean)))]

    def _portions(self, leaves: int, like: Tensor) -> list[_Portion]:
        shards, spans = self.shards(len(like)), _spans_by_replica(leaves, self.peers.replicas)
        # The most that any replica receives: all must cut their shards alike.
        counts = [len(theirs) for theirs in spans]
        rows = sum(counts) - min(counts)
        limit = self.meeting.buffer_bytes
        size = portion_size(shards.size, _UNDER_WAY * max(1, rows), limit, like.element_size())
        inboxes = [self._nodes(spans, one) for one in self._room_for(rows, size, like)]
        return [
            _Portion(self.peers, shards, first, size, inboxes[number % _UNDER_WAY])
            for number, first in enumerate(range(0, shards.size, size))
        ]

    def _room_for(self, rows: int, size: int, like: Tensor) -> Tensor:
        """Memory for what comes in; the same in every update."""
        shape = (_UNDER_WAY, rows, size)
        if self._inbox.shape != shape:
            self._inbox = torch.empty(shape, dtype=like.dtype, device=like.device)
        return self._inbox

    def _nodes(self, spans: tuple[tuple[Span, ...], ...], room: Tensor) -> list[list[Node]]:
        """The rows of one inbox, handed out in the order in which messages are posted."""
        rows = iter(room)
        return [
            [] if replica == self.peers.replica else [Node(span, next(rows)) for span in theirs]
            for replica, theirs in enumerate(spans)
        ]


@cache
def _spans_by_replica(leaves: int, replicas: int) -> tuple[tuple[Span, ...], ...]:
    return tuple(tuple(spans_of(replica * leaves, leaves)) for replica in range(replicas))
