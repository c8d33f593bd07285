"""Rounding by chance: up or down, the nearer neighbor the more often, so that the mean is right.

What is drawn is a function of seed, update, weight and element alone: replicas agree, any part
of a vector may be rounded anywhere, and a run that goes on draws what it would have drawn.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from convoy.numerics.dtypes import FLOAT32, NumberType, Rounder, UpdatedElements
from convoy.rng import key

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_SUBNORMAL_BITS = 32  # of chance below the smallest normal number: a mean is right to 2^-32 steps


class StochasticRounder(Rounder):
    """Rounds every number that is kept in fewer bits than it was computed in."""

    def __init__(self, seed: int, extents: Mapping[str, range]) -> None:
        """`extents` says where each weight lies in the flat vector."""
        self.seed = seed
        self.extents = extents

    def round(self, values: Tensor, to: NumberType, slot: str, updated: UpdatedElements) -> Tensor:
        if to == FLOAT32:
            return values
        drawn = torch.zeros_like(values, dtype=torch.int32)
        for name, part, elements in self._parts(updated.elements):
            stream = key(self.seed, "rounding", slot, name, updated.update)
            drawn[part] = draws(stream, elements, values.device)
        return stochastic(values, drawn, to)

    def _parts(self, elements: range) -> Iterator[tuple[str, slice, range]]:
        """The weights that lie there: where in the block, and which of their elements."""
        for name, extent in self.extents.items():
            start, stop = max(extent.start, elements.start), min(extent.stop, elements.stop)
            if start < stop:
                part = slice(start - elements.start, stop - elements.start)
                yield name, part, range(start - extent.start, stop - extent.start)


def stochastic(values: Tensor, drawn: Tensor, to: NumberType) -> Tensor:
    """32-bit values rounded by 32 random bits each; beyond the largest they become infinite."""
    dropped = (1 << (FLOAT32.fraction_bits - to.fraction_bits)) - 1
    # Sign and magnitude: what is added to the bits makes the magnitude larger, a carry included.
    raised = values.view(torch.int32).add(drawn & dropped).bitwise_and_(~dropped)
    rounded = raised.view(torch.float32)
    if to.lowest_exponent > FLOAT32.lowest_exponent:
        small = (values.abs() < to.smallest_normal).nonzero().squeeze(1)
        rounded[small] = _evenly(values[small], drawn[small], to)
    least, most = rounded.aminmax()
    if bool(-to.largest <= least) and bool(most <= to.largest):  # false for NaN
        return rounded
    rounded[rounded.abs() > to.largest] *= torch.inf
    return torch.where(torch.isfinite(values), rounded, values)


def _evenly(values: Tensor, drawn: Tensor, to: NumberType) -> Tensor:
    """Below the smallest normal number values lie evenly, however small they are."""
    distance = 2.0 ** (to.lowest_exponent - to.fraction_bits)
    steps = values / distance  # exact: a power of two
    below = steps.floor()
    chance = (drawn.double() + 0.5) * 2.0**-_SUBNORMAL_BITS + 0.5  # in (0, 1)
    return (below + (chance < (steps - below).double())).mul_(distance)


def draws(stream: int, elements: range, device: torch.device) -> Tensor:
    """32 random bits for each element: halves of what `chance.bits` gives for element ÷ 2."""
    first, last = elements.start // 2, -(-elements.stop // 2)
    state = torch.arange(first + 1, last + 1, dtype=torch.int64, device=device)
    state.mul_(_signed(_GOLDEN)).add_(_signed(stream))
    _mix_(_mix_(state).add_(_signed(_GOLDEN)))
    start = elements.start - 2 * first
    return state.view(torch.int32)[start : start + len(elements)]


def _mix_(state: Tensor) -> Tensor:
    """splitmix64's finaliser, as in `rng.py`, on whatever device the numbers are."""
    state.bitwise_xor_(_shifted(state, 30)).mul_(_signed(_FIRST))
    state.bitwise_xor_(_shifted(state, 27)).mul_(_signed(_SECOND))
    return state.bitwise_xor_(_shifted(state, 31))


def _shifted(state: Tensor, bits: int) -> Tensor:
    """To the right, zeros coming in: torch would bring in the sign."""
    return (state >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The same 64 bits as torch's whole numbers have them."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word
