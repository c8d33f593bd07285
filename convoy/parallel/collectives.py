"""The copies of one stage exchange tensors; a gradient travels between them in buckets, in a fixed
order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from convoy.numerics.flat import ALIGNMENT
from convoy.numerics.gradients import GradientTree, Node


@dataclass(frozen=True)
class Shards:
    """One consecutive range for each replica, all alike but the last ones.

    A vector too short for all leaves the last replicas with nothing, which is a range too.
    """

    elements: int
    replicas: int

    @property
    def size(self) -> int:
        """Elements of a full shard: whole cache lines."""
        return -(-self.elements // (self.replicas * ALIGNMENT)) * ALIGNMENT

    def of(self, replica: int) -> range:
        start, stop = replica * self.size, (replica + 1) * self.size
        return range(min(start, self.elements), min(stop, self.elements))

    def portion(self, replica: int, first: int, size: int) -> slice:
        """At most `size` elements of a replica's shard, from its element `first` on."""
        own = self.of(replica)
        start, stop = min(own.start + first, own.stop), min(own.start + first + size, own.stop)
        return slice(start, stop)


def portion_size(shard: int, copies: int, most_bytes: int, element_bytes: int) -> int:
    """Elements of a shard that travel at once, so that `copies` of them fit `most_bytes`.

    At least one cache line each, however small the limit.
    """
    fitting = most_bytes // (copies * element_bytes) // ALIGNMENT * ALIGNMENT
    return max(ALIGNMENT, min(shard, fitting))


Message = tuple[int, Tensor]  # the replica it goes to or comes from, and what


class Pending:
    """Messages under way."""

    def __init__(self, works: list[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        """Until all have arrived; what was sent may be changed afterwards."""
        for work in self._works:
            work.wait()
        self._works = []


class Peers:
    """A process group of replicas; `replica` is this process's place in it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.replica = group.rank()
        self.replicas = group.size()
        self.ranks = dist.get_process_group_ranks(group)
        self.others = [one for one in range(self.replicas) if one != self.replica]

    def exchange(
        self, sent: Iterable[Message], received: Iterable[Message], subject: int = 0
    ) -> Pending:
        """Post messages; empty ones are left out on both sides.

        Messages of another subject are never mistaken for these, whenever they are posted.
        """
        posted = [(dist.isend, *one) for one in sent] + [(dist.irecv, *one) for one in received]
        wanted = [
            dist.P2POp(call, tensor, group=self.group, tag=subject, group_peer=peer)
            for call, peer, tensor in posted
            if tensor.numel()
        ]
        return Pending(dist.batch_isend_irecv(wanted) if wanted else [])

    def gather(self, part: Tensor) -> Tensor:
        """Every replica's tensor of this shape, stacked in the order of the replicas."""
        own = part.contiguous()
        stacked = torch.empty((self.replicas, *part.shape), dtype=part.dtype, device=part.device)
        sent = [(peer, own) for peer in self.others]
        pending = self.exchange(sent, [(peer, stacked[peer]) for peer in self.others])
        stacked[self.replica] = own
        pending.wait()
        return stacked

    def add_up(self, vector: Tensor) -> Pending:
        """Begin to replace a vector by the sum over all replicas, in torch's order of adding."""
        work = dist.all_reduce(vector, group=self.group, async_op=True)
        return Pending([] if work is None else [work])


UNDER_WAY = 2  # portions: one is added up, one arrives


class Portion(Protocol):
    """What is sent at once. `slot`, below `UNDER_WAY`, is its own while it is under way."""

    def stretches(self) -> list[range]:
        """The parts of the vectors that it reads and writes."""

    def begin(self, mine: list[Node], slot: int) -> Pending:
        """Post messages; our nodes are complete as far as its stretches go."""

    def settle(self, mine: list[Node], slot: int) -> Pending:
        """The messages have come: add up, and post those of the result, if there are any."""


class Exchange:
    """The portions of one tree's gradient, update after update."""

    def __init__(self, tree: GradientTree, portions: Sequence[Portion]) -> None:
        self.tree = tree
        extents = tree.extents()
        needs = [(one, weights_in(one.stretches(), extents)) for one in portions]
        # The weight that backward reaches last is the first of the network.
        self._turns = sorted(needs, key=lambda pair: -min(pair[1], default=0))
        self._begun = 0
        self._arriving: list[Pending] = []  # of the youngest portions that have begun
        self._leaving: list[Pending] = []

    def begin_ready(self) -> None:
        """Begin every portion whose turn it is and whose weights are summed up."""
        mine = self.tree.nodes()
        for _, weights in self._turns[self._begun :]:
            if not weights <= self.tree.summed:
                return
            self._begin_next(mine)

    def finish(self) -> None:
        """Everything that is left; afterwards the first node's vector holds the result."""
        mine = self.tree.nodes()
        for _ in self._turns[self._begun :]:
            self._begin_next(mine)
        while self._arriving:
            self._settle_oldest(mine)
        for pending in self._leaving:
            pending.wait()
        self._leaving.clear()
        self._begun = 0

    def _begin_next(self, mine: list[Node]) -> None:
        """Waits for the oldest portion when there is no room for another one.

        That one was begun at an earlier point of the same backward, which the other replicas reach
        without us: nobody can wait for one who waits for him.
        """
        if len(self._arriving) == UNDER_WAY:
            self._settle_oldest(mine)
        portion, _ = self._turns[self._begun]
        self._arriving.append(portion.begin(mine, self._begun % UNDER_WAY))
        self._begun += 1

    def _settle_oldest(self, mine: list[Node]) -> None:
        oldest = self._begun - len(self._arriving)
        portion, _ = self._turns[oldest]
        self._arriving.pop(0).wait()
        self._leaving.append(portion.settle(mine, oldest % UNDER_WAY))


def weights_in(stretches: Sequence[range], extents: Sequence[range]) -> frozenset[int]:
    """The places of the weights that lie there, if only in part."""
    return frozenset(
        place
        for place, extent in enumerate(extents)
        if any(one.start < extent.stop and extent.start < one.stop for one in stretches)
    )


class NormSync:
    """What `models.BatchNorm` calls its partners. All of them ask in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._peers = Peers(group)

    @property
    def span(self) -> int:
        return self._peers.replicas

    def gather(self, part: Tensor) -> Tensor:
        """Every partner's tensor of this shape, stacked in the order of the replicas."""
        if part.device.type != "cpu":
            return self._peers.gather(part)  # NCCL wants messages of both directions in one batch
        own, group, others = part.contiguous(), self._peers.group, self._peers.others
        stacked = torch.empty((self.span, *part.shape), dtype=part.dtype)
        under_way = [
            *(dist.isend(own, group=group, group_dst=one) for one in others),
            *(dist.irecv(stacked[one], group=group, group_src=one) for one in others),
        ]
        stacked[self._peers.replica] = own
        for work in under_way:
            assert work is not None, "this process belongs to the group"
            work.wait()
        return stacked
