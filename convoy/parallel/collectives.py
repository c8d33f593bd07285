"""Communication between the replicas of a stage: gradients are reduced bucket by bucket, in a fixed
order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from convoy.numerics.flat import ALIGNMENT
from convoy.numerics.gradients import GradientTree, Node


@dataclass(frozen=True)
class Shards:
    """One contiguous range per replica, of equal size except for the last ones.

    If the vector is too short for all replicas, the last ones have an empty range.
    """

    elements: int
    replicas: int

    @property
    def size(self) -> int:
        """Elements of a full shard, a multiple of the cache line."""
        return -(-self.elements // (self.replicas * ALIGNMENT)) * ALIGNMENT

    def range_of(self, replica: int) -> range:
        return range(self.elements)[replica * self.size : (replica + 1) * self.size]


def bucket_size(shard: int, buffers: int, max_bytes: int, element_bytes: int) -> int:
    """Elements per bucket, so that `buffers` buckets fit into `max_bytes`.

    A bucket has at least one cache line, however small the limit is.
    """
    fitting = max_bytes // (buffers * element_bytes) // ALIGNMENT * ALIGNMENT
    return max(ALIGNMENT, min(shard, fitting))


Message = tuple[int, Tensor]  # the peer it is sent to or received from, and its data
PendingWorks = list[dist.Work]  # operations in flight


def wait_all(pending: PendingWorks) -> None:
    """Wait for all operations; afterwards sent tensors may be modified."""
    for work in pending:
        work.wait()


class PeerGroup:
    """A process group of replicas; `replica` is the rank of this process in it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.replica = group.rank()
        self.replicas = self.size = group.size()  # `size` as in SyncGroup
        self.ranks = dist.get_process_group_ranks(group)
        self.other_replicas = [peer for peer in range(self.replicas) if peer != self.replica]

    def batch_isend_irecv(
        self, sent: Iterable[Message], received: Iterable[Message], tag: int = 0
    ) -> PendingWorks:
        """Start sends and receives; both sides leave out empty tensors.

        Messages are matched by tag, so batches with different tags may overlap.
        """
        sends = [(dist.isend, *message) for message in sent]
        receives = [(dist.irecv, *message) for message in received]
        operations = [
            dist.P2POp(call, tensor, group=self.group, tag=tag, group_peer=peer)
            for call, peer, tensor in sends + receives
            if tensor.numel()
        ]
        return dist.batch_isend_irecv(operations) if operations else []

    def all_gather_in_place(self, parts: Sequence[Tensor], tag: int = 0) -> PendingWorks:
        """Start to send the part of this replica to all others, and to receive their parts."""
        sent = [(peer, parts[self.replica]) for peer in self.other_replicas]
        return self.batch_isend_irecv(
            sent, [(peer, parts[peer]) for peer in self.other_replicas], tag
        )

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Gather tensors of the same shape, stacked in replica order."""
        stacked = tensor.new_empty((self.replicas, *tensor.shape))
        stacked[self.replica] = tensor
        wait_all(self.all_gather_in_place(stacked.unbind()))
        return stacked

    def all_reduce(self, vector: Tensor) -> PendingWorks:
        """Start an in-place sum over all replicas; the backend chooses the order of additions."""
        work = dist.all_reduce(vector, group=self.group, async_op=True)
        return [] if work is None else [work]


MAX_IN_FLIGHT = 2  # buckets: one is summed while the next is received


class Bucket(Protocol):
    """A part of a gradient. While in flight it owns buffer `slot`, below `MAX_IN_FLIGHT`."""

    def element_ranges(self) -> list[range]:
        """The ranges of the vectors that it reads and writes."""

    def start(self, local_nodes: list[Node], slot: int) -> PendingWorks:
        """Start the communication; the local nodes are complete within its element ranges."""

    def finish(self, local_nodes: list[Node], slot: int) -> PendingWorks:
        """Sum what was received, and start to send the result if necessary."""


class BucketedReducer:
    """Reduces the gradient of one tree bucket by bucket, update after update."""

    def __init__(self, tree: GradientTree, buckets: Sequence[Bucket]) -> None:
        self.tree = tree
        weight_ranges = list(tree.flat.parameter_extents().values())
        needs = [
            (bucket, overlapping_weights(bucket.element_ranges(), weight_ranges))
            for bucket in buckets
        ]
        # Backward reaches the first weight of the network last.
        self._buckets = sorted(needs, key=lambda pair: -min(pair[1], default=0))
        self._started = 0
        self._in_flight: list[PendingWorks] = []  # of the buckets started last
        self._result_sends: PendingWorks = []

    def start_ready(self) -> None:
        """Start the next buckets, in order, up to the first with incomplete gradients."""
        local_nodes = self.tree.nodes()
        for _, weights in self._buckets[self._started :]:
            if not weights <= self.tree.summed_weights:
                return
            self._start_next(local_nodes)

    def finish(self) -> None:
        """Reduce all remaining buckets; the vector of the first node then holds the result."""
        local_nodes = self.tree.nodes()
        for _ in self._buckets[self._started :]:
            self._start_next(local_nodes)
        while self._in_flight:
            self._finish_oldest(local_nodes)
        wait_all(self._result_sends)
        self._result_sends.clear()
        self._started = 0

    def _start_next(self, local_nodes: list[Node]) -> None:
        """Start a bucket, after waiting for the oldest one if too many are in flight.

        The oldest was started at an earlier point of the same backward pass, which the other
        replicas reach without this one: no two replicas can wait for each other.
        """
        if len(self._in_flight) == MAX_IN_FLIGHT:
            self._finish_oldest(local_nodes)
        bucket, _ = self._buckets[self._started]
        self._in_flight.append(bucket.start(local_nodes, self._started % MAX_IN_FLIGHT))
        self._started += 1

    def _finish_oldest(self, local_nodes: list[Node]) -> None:
        oldest = self._started - len(self._in_flight)
        bucket, _ = self._buckets[oldest]
        wait_all(self._in_flight.pop(0))
        self._result_sends += bucket.finish(local_nodes, oldest % MAX_IN_FLIGHT)


def overlapping_weights(
    element_ranges: Sequence[range], weight_ranges: Sequence[range]
) -> frozenset[int]:
    """The indices of the weights that overlap any of the element ranges."""
    return frozenset(
        index
        for index, weight in enumerate(weight_ranges)
        if any(part.start < weight.stop and weight.start < part.stop for part in element_ranges)
    )
