"""Number types and rounding to them, the dtype policy of a weight, and how layers compute: in 32
bits, in 16 bits natively, or emulated (fp32 with rounded results).

Rounding by chance goes up or down, the nearer neighbor the more often, so that the mean is right.
What is drawn is a function of seed, update, weight and element alone: replicas agree, any part of a
vector may be rounded anywhere, and a resumed run draws what it would have drawn.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from convoy.batch import Bundle
from convoy.models.layers import (
    ActivationSpec,
    ConcatSpec,
    FlattenSpec,
    MaxPoolSpec,
    Operation,
    PadChannelsSpec,
)
from convoy.rng import key


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


_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_SUBNORMAL_BITS = 32  # of chance below the smallest normal number: a mean is right to 2^-32 steps


class StochasticRounder(Rounder):
    """Rounds by chance every number that is kept in fewer bits than it was computed in."""

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

    def after(self, outputs: Tensor) -> Tensor:
        """What is done to the result of a layer that computes anything new."""
        if not self.rounds:
            return outputs
        if self.native:
            return self._narrowed(outputs)
        rounded: Tensor = _Rounded.apply(outputs, self.number, self.saturates)  # type: ignore[no-untyped-call]
        return rounded

    def _narrowed(self, outputs: Tensor) -> Tensor:
        """Some layers compute in 32 bits even there; gradients arrive as the device made them."""
        narrowed = outputs.to(self.number.dtype)
        if self.saturates and narrowed.requires_grad:
            narrowed.register_hook(self.number.saturated)  # type: ignore[no-untyped-call]
        return narrowed

    def entered(self, bundle: Bundle) -> Bundle:
        """What came from another stage, or another part of this one."""
        return tuple(map(self._narrowed, bundle)) if self.native and self.rounds else bundle

    def left(self, bundle: Bundle) -> Bundle:
        """Between stages numbers travel in 32 bits, which changes none of them."""
        return tuple(one.float() for one in bundle) if self.native and self.rounds else bundle

    def context(self, device: torch.device) -> AbstractContextManager[object]:
        """What the layers of a slice run in."""
        if self.rounds and self.native:
            return torch.autocast(device.type, self.number.dtype)
        return HalfPartials(self.after) if self.rounds and self.partials else nullcontext()


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
