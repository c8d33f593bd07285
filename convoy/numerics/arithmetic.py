"""How layers compute: in 32 bits, in 16 bits by the device itself, or as if in 16 bits.

As if: a layer computes in 32 bits, as fast 16-bit arithmetic does inside, and what it hands on is
rounded to 16 bits, and so is the gradient that comes back. The numbers are those of 16 bits, in
the memory of 32.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from convoy.numerics.partials import HalfPartials
from convoy.numerics.types import FLOAT32, NumberType
from convoy.plan.operations import Activation, Concat, Flatten, MaxPool, Operation, PadChannels

Bundle = tuple[Tensor, ...]
After = Callable[[Tensor], Tensor]


def as_it_is(made: Tensor) -> Tensor:
    """32 bits: nothing to round."""
    return made


@dataclass(frozen=True)
class Arithmetic:
    """The one face: a slice runs inside `context`, and hands each result to `after`."""

    number: NumberType = FLOAT32
    native: bool = False  # the device computes in it
    saturates: bool = False  # a gradient too large becomes the largest, not infinite
    partials: bool = False  # sums of products are rounded on the way, too

    @property
    def after(self) -> After:
        """What is done to the result of a layer that computes anything new."""
        if self.number == FLOAT32:
            return as_it_is
        return self._narrowed if self.native else self._rounded

    def _narrowed(self, made: Tensor) -> Tensor:
        """Some layers compute in 32 bits even there."""
        return made.to(self.number.dtype)

    def _rounded(self, made: Tensor) -> Tensor:
        rounded: Tensor = _Rounded.apply(made, self.number, self.saturates)  # type: ignore[no-untyped-call]
        return rounded

    def entered(self, bundle: Bundle) -> Bundle:
        """What came from another stage, or another part of this one."""
        return tuple(map(self._narrowed, bundle)) if self._narrows else bundle

    def left(self, bundle: Bundle) -> Bundle:
        """Between stages numbers travel in 32 bits, which changes none of them."""
        return tuple(one.float() for one in bundle) if self._narrows else bundle

    @property
    def _narrows(self) -> bool:
        return self.native and self.number != FLOAT32

    def context(self, device: torch.device) -> AbstractContextManager[object]:
        """What the layers of a slice run in."""
        if self.number == FLOAT32:
            return nullcontext()
        if self.native:
            return torch.autocast(device.type, self.number.dtype)
        return HalfPartials(self.after) if self.partials else nullcontext()


class _Rounded(torch.autograd.Function):
    """The nearest value of a type, both ways."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, made: Tensor, number: NumberType, saturates: bool
    ) -> Tensor:
        ctx.number, ctx.saturates = number, saturates  # type: ignore[attr-defined]  # torch's way
        return number.nearest(made)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor
    ) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        number: NumberType = ctx.number  # type: ignore[attr-defined]
        if ctx.saturates:  # type: ignore[attr-defined]
            return number.nearest(number.saturated(gradient)), None, None
        return number.nearest(gradient), None, None


def makes_new_numbers(operation: Operation) -> bool:
    """Whether its results may be no values of the type of what it was given."""
    if isinstance(operation, Activation):
        return operation.kind not in ("relu", "relu6")
    return not isinstance(operation, MaxPool | Flatten | PadChannels | Concat)
