"""Number types, how an fp32 value is rounded to each, and the dtype policy of a weight."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class NumberType:
    """A floating-point type: sign, exponent, fraction."""

    name: str
    dtype: torch.dtype
    fraction_bits: int
    lowest_exponent: int  # of normal numbers; below it they are evenly spaced down to 0
    largest: float

    @property
    def smallest_normal(self) -> float:
        return float(2.0**self.lowest_exponent)

    def nearest(self, values: Tensor) -> Tensor:
        """In the memory of 32-bit numbers: the nearest value of this type, ties to even."""
        if self.dtype == values.dtype:
            return values
        if torch.compiler.is_compiling():
            rounded: Tensor = _there_and_back(values, self.dtype)
            return rounded
        return values.to(self.dtype).to(values.dtype)

    def saturated(self, values: Tensor) -> Tensor:
        """No value beyond the largest, infinite ones neither; NaN stays."""
        return values.clamp(-self.largest, self.largest)


@torch.library.custom_op("convoy::there_and_back", mutates_args=())
def _there_and_back(values: Tensor, dtype: torch.dtype) -> Tensor:
    """As one operation: torch's compiler takes two casts in a row for a waste, and removes them."""
    return values.to(dtype).to(values.dtype)


@_there_and_back.register_fake
def _(values: Tensor, dtype: torch.dtype) -> Tensor:
    del dtype
    return torch.empty_like(values)


FLOAT32 = NumberType("float32", torch.float32, 23, -126, torch.finfo(torch.float32).max)
FLOAT16 = NumberType("float16", torch.float16, 10, -14, torch.finfo(torch.float16).max)
BFLOAT16 = NumberType("bfloat16", torch.bfloat16, 7, -126, torch.finfo(torch.bfloat16).max)

TYPES = {number.name: number for number in (FLOAT32, FLOAT16, BFLOAT16)}


@dataclass(frozen=True)
class DtypePolicy:
    """The types around one weight."""

    param: NumberType = FLOAT32  # what an update changes and a checkpoint stores
    compute: NumberType = FLOAT32  # what layers compute with; gradients are of this type too
    accumulator: torch.dtype | None = None  # of gradients; None is the type of `param`
    state: NumberType = FLOAT32  # of the optimizer
    reduction: str = "auto"  # how gradients are reduced, by name: see `gradients.py`

    @property
    def accumulator_dtype(self) -> torch.dtype:
        return self.accumulator or self.param.dtype

    @property
    def has_master(self) -> bool:
        """Whether a master copy exists beside the weights that the network uses."""
        return self.param != self.compute


@dataclass(frozen=True)
class UpdatedElements:
    """Elements of a flat vector that an update changes."""

    elements: range
    update: int


class Rounder:
    """Rounds what an update has computed in fp32 to the nearest value of the type."""

    def round(self, values: Tensor, to: NumberType, slot: str, updated: UpdatedElements) -> Tensor:
        """`slot` is one of the optimizer's state, or "weight". The result is fp32 in memory."""
        del slot, updated  # stochastic rounding needs them
        return to.nearest(values)
