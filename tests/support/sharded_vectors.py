"""A vector of which every replica owns a part: what a process of a pool does with it."""

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
    """So many elements, numbered."""

    elements: int
    sharded: bool = True


def gathered(peers: PeerGroup | None, case: Vector) -> tuple[list[float], list[list[float]]]:
    """The whole vector, and its rows of 16 with their first element twice."""
    count = peers.replicas if peers else 1
    replicas = ExactReplicas(peers, ReduceOptions(case.sharded, 1 << 20)) if peers else Replicas()
    owned = replicas.shard_range(case.elements)
    part = torch.arange(float(case.elements))[owned.start : owned.stop]
    rows = torch.stack([part[::16], part[::16]], 1)
    full = shard_gatherer(replicas, case.elements)(part)
    every = row_gatherer(replicas, Shards(case.elements, count))(rows)
    return full.tolist(), every.tolist()
