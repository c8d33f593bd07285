"""Gather a sharded vector in the processes of a replica pool."""

from dataclasses import dataclass

import torch

from convoy.parallel.collectives import PeerGroup, Shards
from convoy.parallel.replicas import (
    ExactReplicas,
    ReduceOptions,
    Replicas,
    row_gatherer,
    shard_gatherer,
)


@dataclass(frozen=True)
class Vector:
    """A vector of consecutive numbers."""

    elements: int
    sharded: bool = True


def gathered(peers: PeerGroup | None, case: Vector) -> tuple[list[float], list[list[float]]]:
    """The full vector, and one row per 16 elements with the first element twice."""
    count = peers.replicas if peers else 1
    replicas = ExactReplicas(peers, ReduceOptions(case.sharded, 1 << 20)) if peers else Replicas()
    shard_range = replicas.shard_range(case.elements)
    shard = torch.arange(float(case.elements))[shard_range.start : shard_range.stop]
    rows = torch.stack([shard[::16], shard[::16]], 1)
    full = shard_gatherer(replicas, case.elements)(shard)
    all_rows = row_gatherer(replicas, Shards(case.elements, count))(rows)
    return full.tolist(), all_rows.tolist()
