"""Floating-point formats and rounding, the dtype policy of a weight, and the arithmetic of layers:
fp32, native 16-bit, or emulated 16-bit (fp32 with rounded results).

Stochastic rounding rounds up or down with probabilities that make the mean exact. The random bits
depend only on seed, update, weight and element: replicas agree, any process may round any part of a
vector, and a resumed run rounds as the uninterrupted run would.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
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
    OpSpec,
    PadChannelsSpec,
)
from convoy.rng import FIRST_MULTIPLIER, GOLDEN, SECOND_MULTIPLIER, key


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point format: sign, exponent, fraction."""

    name: str
    dtype: torch.dtype
    fraction_bits: int
    min_exponent: int  # of normal numbers; subnormal numbers are evenly spaced down to 0
    max_value: float

    @property
    def smallest_normal(self) -> float:
        return float(2.0**self.min_exponent)

    def round_nearest(self, values: Tensor) -> Tensor:
        """Round to the nearest value of this format, ties to even; the dtype stays fp32."""
        if self.dtype == values.dtype:
            return values
        if torch.compiler.is_compiling():
            rounded: Tensor = _cast_round_trip(values, self.dtype)
            return rounded
        return values.to(self.dtype).to(values.dtype)

    def saturate(self, values: Tensor) -> Tensor:
        """Clamp values, including infinities, to the largest finite value; NaN stays NaN."""
        return values.clamp(-self.max_value, self.max_value)


@torch.library.custom_op("convoy::there_and_back", mutates_args=())
def _cast_round_trip(values: Tensor, dtype: torch.dtype) -> Tensor:
    """A custom op, because torch.compile removes two consecutive casts as redundant."""
    return values.to(dtype).to(values.dtype)


@_cast_round_trip.register_fake
def _(values: Tensor, dtype: torch.dtype) -> Tensor:
    del dtype
    return torch.empty_like(values)


FLOAT32 = FloatFormat("float32", torch.float32, 23, -126, torch.finfo(torch.float32).max)
FLOAT16 = FloatFormat("float16", torch.float16, 10, -14, torch.finfo(torch.float16).max)
BFLOAT16 = FloatFormat("bfloat16", torch.bfloat16, 7, -126, torch.finfo(torch.bfloat16).max)

FLOAT_FORMATS = {known.name: known for known in (FLOAT32, FLOAT16, BFLOAT16)}


@dataclass(frozen=True)
class DtypePolicy:
    """The number formats used for one weight."""

    param: FloatFormat = FLOAT32  # what an update changes and a checkpoint stores
    compute: FloatFormat = FLOAT32  # of layers and gradients
    accumulator: torch.dtype | None = None  # of gradients; None is the dtype of `param`
    state: FloatFormat = FLOAT32  # of the optimizer state
    reduction: str = "auto"  # how gradients are reduced, by name: see `gradients.py`

    @property
    def accumulator_dtype(self) -> torch.dtype:
        return self.accumulator or self.param.dtype

    @property
    def has_master(self) -> bool:
        """Whether there is a master copy in addition to the weights that the network uses."""
        return self.param != self.compute


@dataclass(frozen=True)
class ElementRange:
    """Elements of a flat vector that an update changes."""

    elements: range
    update: int


class Rounder:
    """Rounds the fp32 results of an update to the nearest value of a format."""

    def round(self, values: Tensor, to: FloatFormat, slot: str, updated: ElementRange) -> Tensor:
        """`slot` names an optimizer state, or is "weight". The dtype of the result is fp32."""
        del slot, updated  # stochastic rounding needs them
        return to.round_nearest(values)


_SUBNORMAL_BITS = 32  # random bits for subnormal numbers: means are exact to 2^-32 steps


class StochasticRounder(Rounder):
    """Rounds stochastically to formats with fewer bits than fp32."""

    def __init__(self, seed: int, extents: Mapping[str, range]) -> None:
        """`extents` are the elements of each weight in the flat vector."""
        self.seed = seed
        self.extents = extents

    def round(self, values: Tensor, to: FloatFormat, slot: str, updated: ElementRange) -> Tensor:
        if to == FLOAT32:
            return values
        bits = torch.zeros_like(values, dtype=torch.int32)
        for name, part, elements in self._parts(updated.elements):
            stream = key(self.seed, "rounding", slot, name, updated.update)
            bits[part] = random_bits(stream, elements, values.device)
        return round_stochastic(values, bits, to)

    def _parts(self, elements: range) -> Iterator[tuple[str, slice, range]]:
        """Yield each weight that overlaps the elements: name, slice of the block, its elements."""
        for name, extent in self.extents.items():
            start, stop = max(extent.start, elements.start), min(extent.stop, elements.stop)
            if start < stop:
                part = slice(start - elements.start, stop - elements.start)
                yield name, part, range(start - extent.start, stop - extent.start)


def round_stochastic(values: Tensor, bits: Tensor, to: FloatFormat) -> Tensor:
    """Round fp32 values with 32 random bits each; values beyond the largest become infinite."""
    dropped = (1 << (FLOAT32.fraction_bits - to.fraction_bits)) - 1
    # Sign-magnitude: adding to the bits increases the magnitude, carries included.
    raised = values.view(torch.int32).add(bits & dropped).bitwise_and_(~dropped)
    rounded = raised.view(torch.float32)
    if to.min_exponent > FLOAT32.min_exponent:
        small = (values.abs() < to.smallest_normal).nonzero().squeeze(1)
        rounded[small] = _round_subnormal(values[small], bits[small], to)
    low, high = rounded.aminmax()
    if bool(-to.max_value <= low) and bool(high <= to.max_value):  # false for NaN
        return rounded
    rounded[rounded.abs() > to.max_value] *= torch.inf
    return torch.where(torch.isfinite(values), rounded, values)


def _round_subnormal(values: Tensor, bits: Tensor, to: FloatFormat) -> Tensor:
    """Round on the even grid below the smallest normal number."""
    spacing = 2.0 ** (to.min_exponent - to.fraction_bits)
    steps = values / spacing  # exact: a power of two
    below = steps.floor()
    threshold = (bits.double() + 0.5) * 2.0**-_SUBNORMAL_BITS + 0.5  # in (0, 1)
    return (below + (threshold < (steps - below).double())).mul_(spacing)


def random_bits(stream: int, elements: range, device: torch.device) -> Tensor:
    """32 random bits per element: one half of `rng.bits` for element ÷ 2."""
    first, last = elements.start // 2, -(-elements.stop // 2)
    state = torch.arange(first + 1, last + 1, dtype=torch.int64, device=device)
    state.mul_(_as_int64(GOLDEN)).add_(_as_int64(stream))
    _mix_(_mix_(state).add_(_as_int64(GOLDEN)))
    start = elements.start - 2 * first
    return state.view(torch.int32)[start : start + len(elements)]


def _mix_(state: Tensor) -> Tensor:
    """splitmix64's finaliser, as in `rng.py`, on any device."""
    state.bitwise_xor_(_logical_shift(state, 30)).mul_(_as_int64(FIRST_MULTIPLIER))
    state.bitwise_xor_(_logical_shift(state, 27)).mul_(_as_int64(SECOND_MULTIPLIER))
    return state.bitwise_xor_(_logical_shift(state, 31))


def _logical_shift(state: Tensor, bits: int) -> Tensor:
    """Shift right with zeros; the shift of torch extends the sign."""
    return (state >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _as_int64(word: int | np.uint64) -> int:
    """Reinterpret 64 bits as a signed integer, as torch needs them."""
    return int(np.uint64(word).view(np.int64))


PARTIAL_SUM_CHANNELS = 16


class HalfPartialSums(TorchFunctionMode):
    """Makes convolutions and linear layers sum their forward pass in rounded blocks of channels."""

    def __init__(self, round_output: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.round_output = round_output

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        if func not in (F.conv2d, torch.conv2d, F.linear):
            return func(*args, **(kwargs or {}))
        assert not kwargs, "convolutions and linear layers get positional arguments only"
        inputs, weight, *rest = args
        bias, *geometry = rest or [None]  # stride, padding, dilation, groups
        if len(geometry) == 4 and geometry[3] > 1:  # a group has few channels
            outputs = func(inputs, weight, None, *geometry)
        else:
            blocks = zip(
                inputs.split(PARTIAL_SUM_CHANNELS, 1),
                weight.split(PARTIAL_SUM_CHANNELS, 1),
                strict=True,
            )
            parts = (func(*block, None, *geometry) for block in blocks)
            outputs = self.round_output(next(parts))
            for part in parts:
                outputs = self.round_output(outputs + part)
        if bias is None:
            return outputs
        return outputs + (bias if func is F.linear else bias.view(-1, 1, 1))


@dataclass(frozen=True)
class Arithmetic:
    """How a slice computes: layers run inside `context`, `round` rounds their results."""

    float_format: FloatFormat = FLOAT32
    native: bool = False  # the device computes in this format
    saturates: bool = False  # overflowing gradients become the largest value, not infinite
    half_partials: bool = False  # partial sums are rounded as well

    @property
    def rounds(self) -> bool:
        """Whether results need rounding; in fp32 layers run without wrappers."""
        return self.float_format != FLOAT32

    def round(self, outputs: Tensor) -> Tensor:
        """Round images, or the output of a layer that computes new values."""
        if not self.rounds:
            return outputs
        if self.native:
            return self._cast_output(outputs)
        rounded: Tensor = _RoundFunction.apply(outputs, self.float_format, self.saturates)  # type: ignore[no-untyped-call]
        return rounded

    def _cast_output(self, outputs: Tensor) -> Tensor:
        """Cast to the format: under autocast some layers still compute in fp32."""
        narrowed = outputs.to(self.float_format.dtype)
        if self.saturates and narrowed.requires_grad:
            narrowed.register_hook(self.float_format.saturate)  # type: ignore[no-untyped-call]
        return narrowed

    def cast_inputs(self, bundle: Bundle) -> Bundle:
        """Cast the inputs from another stage or segment."""
        return tuple(map(self._cast_output, bundle)) if self.native and self.rounds else bundle

    def cast_outputs(self, bundle: Bundle) -> Bundle:
        """Cast to fp32, in which stages exchange tensors; this is lossless."""
        return tuple(tensor.float() for tensor in bundle) if self.native and self.rounds else bundle

    def context(self, device: torch.device) -> AbstractContextManager[object]:
        if self.rounds and self.native:
            return torch.autocast(device.type, self.float_format.dtype)
        if self.rounds and self.half_partials:
            return HalfPartialSums(self.round)
        return nullcontext()


class _RoundFunction(torch.autograd.Function):
    """Rounds to the nearest value of a format, forward and backward."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        outputs: Tensor,
        number_format: FloatFormat,
        saturates: bool,
    ) -> Tensor:
        ctx.number_format, ctx.saturates = number_format, saturates  # type: ignore[attr-defined]
        return number_format.round_nearest(outputs)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor
    ) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        number_format: FloatFormat = ctx.number_format  # type: ignore[attr-defined]
        if ctx.saturates:  # type: ignore[attr-defined]
            gradient = number_format.saturate(gradient)
        return number_format.round_nearest(gradient), None, None


def needs_rounding(operation: OpSpec) -> bool:
    """Whether results may not be representable in the format of the inputs."""
    if isinstance(operation, ActivationSpec):
        return operation.kind not in ("relu", "relu6")
    return not isinstance(operation, MaxPoolSpec | FlattenSpec | PadChannelsSpec | ConcatSpec)
