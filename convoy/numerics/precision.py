"""How layers compute: in 32 bits, in 16 bits natively, or emulated (fp32 with rounded results)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from convoy.batch import Bundle
from convoy.models.operations import (
    ActivationSpec,
    ConcatSpec,
    FlattenSpec,
    MaxPoolSpec,
    Operation,
    PadChannelsSpec,
)
from convoy.numerics.dtypes import FLOAT32, NumberType

CHANNELS = 16


class HalfPartials(TorchFunctionMode):
    """Inside, convolutions and linear layers add up channel block by channel block, forward."""

    def __init__(self, rounded: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rounded = rounded

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        if func in (F.conv2d, torch.conv2d):
            assert not kwargs, "layers give a convolution its figures in order"
            return self._conv(*args)
        if func is F.linear:
            return self._linear(*args)
        return func(*args, **(kwargs or {}))

    def _conv(self, inputs: Tensor, weight: Tensor, bias: Tensor | None, *figures: Any) -> Tensor:
        """Figures: stride, padding, dilation, groups."""

        def product(first: Tensor, second: Tensor) -> Tensor:
            return torch.conv2d(first, second, None, *figures)

        is_whole = len(figures) < 4 or figures[3] == 1  # the channels of a group are few
        outputs = self._summed(product, inputs, weight) if is_whole else product(inputs, weight)
        return self._offset(outputs, bias, (-1, 1, 1))

    def _linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return self._offset(self._summed(F.linear, inputs, weight), bias, (-1,))

    def _summed(
        self, product: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, weight: Tensor
    ) -> Tensor:
        parts = torch.split(inputs, CHANNELS, 1), torch.split(weight, CHANNELS, 1)
        total: Tensor | None = None
        for channels, weights in zip(*parts, strict=True):
            part = product(channels, weights)
            total = self.rounded(part if total is None else total + part)
        assert total is not None, "there is a channel"
        return total

    def _offset(self, outputs: Tensor, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
        return outputs if bias is None else outputs + bias.view(shape)


After = Callable[[Tensor], Tensor]


def as_it_is(outputs: Tensor) -> Tensor:
    """32 bits: nothing to round."""
    return outputs


@dataclass(frozen=True)
class Arithmetic:
    """The one face: a slice runs inside `context`, and hands each result to `after`."""

    number: NumberType = FLOAT32
    native: bool = False  # the device computes in it
    saturates: bool = False  # a gradient too large becomes the largest, not infinite
    partials: bool = False  # sums of products are rounded on the way, too

    @property
    def rounds(self) -> bool:
        """Whether results need rounding at all; in fp32 layers run without any wrapper."""
        return self.number != FLOAT32

    @property
    def after(self) -> After:
        """What is done to the result of a layer that computes anything new."""
        if not self.rounds:
            return as_it_is
        return self._narrowed if self.native else self._rounded

    def _narrowed(self, outputs: Tensor) -> Tensor:
        """Some layers compute in 32 bits even there; gradients arrive as the device made them."""
        narrowed = outputs.to(self.number.dtype)
        if self.saturates and narrowed.requires_grad:
            narrowed.register_hook(self.number.saturated)  # type: ignore[no-untyped-call]
        return narrowed

    def _rounded(self, outputs: Tensor) -> Tensor:
        rounded: Tensor = _Rounded.apply(outputs, self.number, self.saturates)  # type: ignore[no-untyped-call]
        return rounded

    def entered(self, bundle: Bundle) -> Bundle:
        """What came from another stage, or another part of this one."""
        return tuple(map(self._narrowed, bundle)) if self._narrows else bundle

    def left(self, bundle: Bundle) -> Bundle:
        """Between stages numbers travel in 32 bits, which changes none of them."""
        return tuple(one.float() for one in bundle) if self._narrows else bundle

    @property
    def _narrows(self) -> bool:
        return self.native and self.rounds

    def context(self, device: torch.device) -> AbstractContextManager[object]:
        """What the layers of a slice run in."""
        if not self.rounds:
            return nullcontext()
        if self.native:
            return torch.autocast(device.type, self.number.dtype)
        return HalfPartials(self.after) if self.partials else nullcontext()


class _Rounded(torch.autograd.Function):
    """The nearest value of a type, both ways."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        outputs: Tensor,
        number: NumberType,
        saturates: bool,
    ) -> Tensor:
        ctx.number, ctx.saturates = number, saturates  # type: ignore[attr-defined]  # torch's way
        return number.nearest(outputs)

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
    if isinstance(operation, ActivationSpec):
        return operation.kind not in ("relu", "relu6")
    return not isinstance(operation, MaxPoolSpec | FlattenSpec | PadChannelsSpec | ConcatSpec)
