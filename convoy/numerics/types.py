"""Number types, and how a 32-bit value becomes one of theirs.

A value "of 16 bits" may lie in 32-bit memory here: it is then one of those that 16 bits can hold.
"""

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

TYPES = {one.name: one for one in (FLOAT32, FLOAT16, BFLOAT16)}
