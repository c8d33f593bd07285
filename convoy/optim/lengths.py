"""Lengths of whole weights, of which a replica may own a part alone: the same bits for any owners.

    16 elements ──squares, pairwise sums──→ one row ─┐
    16 elements ──────────────────────────→ one row ─┼─ rows of all owners ──fixed tree──→ length
    16 elements (another owner's) ────────→ one row ─┘

Owners part between rows. Squares of 32-bit numbers are exact in 64 bits; padding adds zeros.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from convoy.numerics.flat import ALIGNMENT


@dataclass(frozen=True)
class Lengths:
    """Euclidean ones."""

    weight: float
    gradient: float


def row_squares(values: Tensor) -> Tensor:
    """The sum of the squares of each row of 16, in 64 bits."""
    squares = values.to(torch.float64).square_().view(-1, ALIGNMENT)
    return folded(squares.t())


def folded(parts: Tensor) -> Tensor:
    """The sum over the first dimension: the far half comes upon the near one, until one is left.

    Which numbers meet depends on how many there are, and on nothing else.
    """
    while len(parts) > 1:
        near = -(-len(parts) // 2)
        far = parts[near:]
        parts = torch.cat([parts[: len(far)] + far, parts[len(far) : near]])
    return parts[0]


def lengths_of(rows: Tensor) -> Lengths:
    """Of a weight and its gradient, whose rows are the columns given."""
    weight, gradient = folded(rows).tolist()
    return Lengths(sqrt(weight), sqrt(gradient))
