"""Data-parallel replicas: reduce gradients before each update, keep weights and statistics equal.

The exact sum follows the tree of all micro-batches; each replica computes one shard of it:

    replica 0   nodes ▓▓▓|░░░|░░░      Each sends its part of shard c to replica c (its few
    replica 1   nodes ░░░|▓▓▓|░░░      nodes, known beforehand), receives its shard (▓) from
    replica 2   nodes ░░░|░░░|▓▓▓      all, folds the tree, and sends the result to all.

If the gradient accumulation is a power of two, a replica has one node and sends as much as in a
ring all-reduce. A shard is reduced in buckets: while one is folded, the next is in flight. A bucket
covers the same range of every shard, so all replicas do equal work, with or without sharded state.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from convoy.errors import NumericError
from convoy.numerics.flat import ALIGNMENT
from convoy.numerics.gradients import GradientTree, Node, Reduction, fold_nodes, node_spans
from convoy.parallel.collectives import (
    MAX_IN_FLIGHT,
    Bucket,
    BucketedReducer,
    PeerGroup,
    PendingWorks,
    Shards,
    bucket_size,
    wait_all,
)


def check_replicas_equal(digests: Sequence[bytes], ranks: Sequence[int], update: int) -> None:
    """Raise an error if the digest of some replica differs from that of the majority."""
    majority = max(digests, key=digests.count)  # in a tie, that of the first replica
    odd = [replica for replica, digest in enumerate(digests) if digest != majority]
    if not odd:
        return
    differing = "; ".join(
        f"replica {replica} (rank {ranks[replica]}): {digests[replica].hex()[:12]}…"
        for replica in odd
    )
    even = digests.index(majority)
    raise NumericError(
        f"after update {update} the weights differ between replicas: {differing}, but replica "
        f"{even} (rank {ranks[even]}): {digests[even].hex()[:12]}…; nothing has been saved since. "
        "Check the memory of that machine and continue from the last checkpoint with "
        "`convoy resume`"
    )


class Replicas:
    """The replicas of a stage as the training loop sees them; this class is a single replica."""

    sharded = False  # each replica owns one range, which may be empty

    def shard_range(self, elements: int) -> range:
        """The range of a flat vector that this replica updates and has the optimizer state of."""
        return range(elements)

    def overlap_with_backward(self, tree: GradientTree) -> None:
        """Start to reduce the gradient of this tree during its last backward from now on."""

    def reduce(self, tree: GradientTree) -> Tensor:
        """Reduce the gradients of all micro-batches and replicas, for the range of this replica.

        The tree defines the reduction, which is the mean by default.
        """
        total = fold_nodes(tree.nodes(), tree.reduction)
        finished = tree.reduction.finalize(total, tree.leaves, out=total)
        return finished.to(tree.result_dtype)

    def all_gather_shards(self, values: Tensor) -> None:
        """Fill a flat vector with the updated ranges of all replicas."""

    def all_gather_statistics(self, statistics: Tensor) -> Tensor:
        """Gather one row per micro-batch from all replicas, in micro-batch order."""
        return statistics

    def check_weights_equal(self, digest: Callable[[], bytes], update: int) -> None:
        """Raise an error if the weights of some replica differ."""


@dataclass(frozen=True)
class ReduceOptions:
    """How replicas reduce their gradients."""

    sharded: bool  # each replica has the optimizer state of one shard only
    buffer_bytes: int  # memory limit for messages of one stage in flight
    # Start during the last backward. Two replicas with one thread each on two cores gain nothing
    # (`benchmarks/reduction.py`): there the communication thread takes time from the backward.
    overlap_backward: bool = False


class ReplicaGroup(Replicas, ABC):
    """The common part of exact and fast replicas: everything but the sum."""

    def __init__(self, peers: PeerGroup, options: ReduceOptions) -> None:
        self.peers = peers
        self.options = options
        self.sharded = options.sharded
        self._reducers: dict[tuple[GradientTree, int], BucketedReducer] = {}

    @abstractmethod
    def make_buckets(self, tree: GradientTree, leaves: int, tag: int) -> Sequence[Bucket]:
        """Divide the gradient of a tree with this many leaves into buckets."""

    def overlap_with_backward(self, tree: GradientTree) -> None:
        if self.options.overlap_backward and tree.expected_leaves is not None:
            tree.register_summed_hook(self.reducer_for(tree, tree.expected_leaves).start_ready)

    def reducer_for(self, tree: GradientTree, leaves: int) -> BucketedReducer:
        """The reducer of a tree; tags are assigned in the order of first use."""
        if (tree, leaves) not in self._reducers:
            tag = len(self._reducers) + 1
            buckets = self.make_buckets(tree, leaves, tag)
            self._reducers[tree, leaves] = BucketedReducer(tree, buckets)
        return self._reducers[tree, leaves]

    @torch.no_grad()
    def reduce(self, tree: GradientTree) -> Tensor:
        self.reducer_for(tree, tree.leaves).finish()
        shard = self.shard_range(tree.flat.numel)
        result = tree.nodes()[0].vector[shard.start : shard.stop]
        return result.to(tree.result_dtype)

    def shards(self, elements: int) -> Shards:
        return Shards(elements, self.peers.replicas)

    def shard_range(self, elements: int) -> range:
        shard = self.shards(elements).range_of(self.peers.replica)
        return shard if self.sharded else range(elements)

    def all_gather_shards(self, values: Tensor) -> None:
        """Exchange shards; without sharding every replica has updated all weights."""
        if not self.sharded:
            return
        shards = self.shards(len(values))
        ranges = [shards.range_of(replica) for replica in range(self.peers.replicas)]
        parts = [values[shard.start : shard.stop] for shard in ranges]
        wait_all(self.peers.all_gather_in_place(parts))

    def all_gather_statistics(self, statistics: Tensor) -> Tensor:
        return self.peers.all_gather(statistics).flatten(0, 1)

    def check_weights_equal(self, digest: Callable[[], bytes], update: int) -> None:
        local = torch.frombuffer(bytearray(digest()), dtype=torch.uint8)
        digests = [bytes(row.tolist()) for row in self.peers.all_gather(local)]
        check_replicas_equal(digests, self.peers.ranks, update)


@dataclass(frozen=True)
class _AllReduceBucket:
    """A bucket that torch's all-reduce sums."""

    peers: PeerGroup
    reduction: Reduction
    micro_batches: int  # of all replicas
    elements: range

    def element_ranges(self) -> list[range]:
        return [self.elements]

    def start(self, local_nodes: list[Node], slot: int) -> PendingWorks:
        del slot  # the sum is in place
        nodes = (Node(node.span, self._part_of(node.vector)) for node in local_nodes)
        local = fold_nodes(nodes, self.reduction)
        return self.peers.all_reduce(self.reduction.prescale(local, self.peers.replicas))

    def finish(self, local_nodes: list[Node], slot: int) -> PendingWorks:
        """Finalize the sum, which is in the memory of the first local node."""
        del slot
        total = self._part_of(local_nodes[0].vector)
        self.reduction.finalize(total, self.micro_batches, out=total)
        return []

    def _part_of(self, vector: Tensor) -> Tensor:
        return vector[self.elements.start : self.elements.stop]


class FastReplicas(ReplicaGroup):
    """Sums in the fastest order; results of different layouts differ in the last bits."""

    def make_buckets(self, tree: GradientTree, leaves: int, tag: int) -> list[_AllReduceBucket]:
        del tag  # torch orders its collectives
        elements, limit = tree.flat.numel, self.options.buffer_bytes
        size = bucket_size(elements, MAX_IN_FLIGHT, limit, tree.dtype.itemsize)
        micro_batches = leaves * self.peers.replicas
        return [
            _AllReduceBucket(
                self.peers, tree.reduction, micro_batches, range(elements)[first : first + size]
            )
            for first in range(0, elements, size)
        ]


@dataclass(frozen=True)
class _ExactBucket:
    """The same range of every shard: receives the local one, sends those of the others."""

    replicas: "ExactReplicas"
    tree: GradientTree
    leaves: int
    tag: int  # of its messages
    receive_buffers: list[list[list[Node]]]  # by slot and replica; empty for this replica
    elements: range  # of a shard

    def element_ranges(self) -> list[range]:
        shards = self.replicas.shards(self.tree.flat.numel)
        return [
            shards.range_of(replica)[self.elements.start : self.elements.stop]
            for replica in range(self.replicas.peers.replicas)
        ]

    def start(self, local_nodes: list[Node], slot: int) -> PendingWorks:
        """Exchange the parts of all nodes: each replica receives one range from all others."""
        peers, parts = self.replicas.peers, [self._parts(node.vector) for node in local_nodes]
        sent = [(peer, part[peer]) for peer in peers.other_replicas for part in parts]
        nodes = self._nodes(local_nodes, slot)
        received = [(peer, node.vector) for peer in peers.other_replicas for node in nodes[peer]]
        return peers.batch_isend_irecv(sent, received, self.tag)

    def finish(self, local_nodes: list[Node], slot: int) -> PendingWorks:
        """Write the result for the local range into the first node, and send it to all replicas."""
        peers, reduction = self.replicas.peers, self.tree.reduction
        parts = self._parts(local_nodes[0].vector)
        total = fold_nodes(chain.from_iterable(self._nodes(local_nodes, slot)), reduction)
        reduction.finalize(total, self.leaves * peers.replicas, out=parts[peers.replica])
        if self.replicas.sharded:  # only the owner of a shard needs its result
            return []
        return peers.all_gather_in_place(parts, self.tag)

    def _nodes(self, local_nodes: list[Node], slot: int) -> list[list[Node]]:
        """The nodes of every replica, for the local range."""
        replica = self.replicas.peers.replica
        local = [Node(node.span, self._parts(node.vector)[replica]) for node in local_nodes]
        length = len(local[0].vector)
        nodes = [
            [Node(node.span, node.vector[:length]) for node in received]
            for received in self.receive_buffers[slot]
        ]
        nodes[replica] = local
        return nodes

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """The ranges of a vector, by replica."""
        return [vector[part.start : part.stop] for part in self.element_ranges()]


class ExactReplicas(ReplicaGroup):
    """Sums bit-exactly, however the micro-batches of an update are divided among replicas."""

    def make_buckets(self, tree: GradientTree, leaves: int, tag: int) -> list[_ExactBucket]:
        shard, replicas = self.shards(tree.flat.numel).size, range(self.peers.replicas)
        spans = [node_spans(replica * leaves, leaves) for replica in replicas]
        # The maximum that any replica receives: bucket sizes must be equal on all replicas.
        counts = [len(replica_spans) for replica_spans in spans]
        rows = sum(counts) - min(counts)
        limit, element = self.options.buffer_bytes, tree.dtype.itemsize
        size = bucket_size(shard, MAX_IN_FLIGHT * max(1, rows), limit, element)
        memory = tree.flat.values.new_empty((MAX_IN_FLIGHT, rows, size), dtype=tree.dtype)
        receive_buffers = [self._receive_buffers(spans, slot) for slot in memory]
        return [
            _ExactBucket(self, tree, leaves, tag, receive_buffers, range(first, first + size))
            for first in range(0, shard, size)
        ]

    def _receive_buffers(self, spans: list[list[range]], memory: Tensor) -> list[list[Node]]:
        """Assign the rows of one slot to nodes, in the order of the messages."""
        rows = iter(memory)
        return [
            []
            if replica == self.peers.replica
            else [Node(span, next(rows)) for span in replica_spans]
            for replica, replica_spans in enumerate(spans)
        ]


def shard_gatherer(replicas: Replicas, elements: int) -> Callable[[Tensor], Tensor]:
    """A function that gathers the full vector from all shards. All replicas must call it."""

    def gather(shard: Tensor) -> Tensor:
        if not replicas.sharded:
            return shard
        local = replicas.shard_range(elements)
        vector = shard.new_zeros(elements)
        vector[local.start : local.stop] = shard
        replicas.all_gather_shards(vector)
        return vector

    return gather


def row_gatherer(replicas: Replicas, shards: Shards) -> Callable[[Tensor], Tensor]:
    """A function that gathers rows, one per 16 elements, of the full vector from all shards."""

    def gather(rows: Tensor) -> Tensor:
        if not replicas.sharded:
            return rows
        padded = rows.new_zeros(shards.size // ALIGNMENT, *rows.shape[1:])
        padded[: len(rows)] = rows
        return replicas.all_gather_statistics(padded)[: shards.elements // ALIGNMENT]

    return gather
