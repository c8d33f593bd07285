"""Optimizer state that is sharded over replicas, gathered for a checkpoint."""

from collections.abc import Callable

import torch
from torch import Tensor

from convoy.numerics.flat import ALIGNMENT
from convoy.parallel.reducer import Shards
from convoy.parallel.replicas import Replicas

_LONG = 1 << 40  # elements


def gatherer(replicas: Replicas, elements: int) -> Callable[[Tensor], Tensor]:
    """What makes a whole vector of every replica's owned range. All replicas must call it."""

    def gather(part: Tensor) -> Tensor:
        if not _is_divided(replicas):
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
        if not _is_divided(replicas):
            return rows
        padded = rows.new_zeros(shards.size // ALIGNMENT, *rows.shape[1:])
        padded[: len(rows)] = rows
        return replicas.gather_statistics(padded)[: shards.elements // ALIGNMENT]

    return gather


def _is_divided(replicas: Replicas) -> bool:
    """Asked of a vector that is long enough for all: of a short one the first may own everything,
    and must still speak to those who own nothing."""
    return len(replicas.owned(_LONG)) < _LONG
