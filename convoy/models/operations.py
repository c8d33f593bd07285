"""What a layer computes and what torch keeps for it: shapes, parameters, multiply-adds, before any
tensor exists.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from convoy.models.init import InitRule


@dataclass(frozen=True)
class Shape:
    """One sample of one tensor."""

    channels: int
    size: int  # height and width; 1 after pooling over the whole image

    @property
    def elements(self) -> int:
        return self.channels * self.size * self.size


class Saves(Enum):
    """What stays until the backward pass."""

    NOTHING = "nothing"
    INPUT = "what it was given"
    BOTH = "both things it was given"
    RESULT = "what it made"


@dataclass(frozen=True)
class AutogradStep:
    """Most layers are one; in a chain each works on what the one before it made."""

    result: Shape
    saves: Saves
    in_place: bool = False
    is_product: bool = False
    saves_first: bool = False  # before it begins: what it saves does not wait for its result
    aside: int = 0  # elements kept for its backward pass beside what it was given or made
    work: int = 0  # elements that its backward pass needs beside the gradient it makes
    hands_on: bool = False  # backward, the gradient stays the tensor that it is


def padding(source: Shape, kernel: int, stride: int) -> AutogradStep:
    """A larger copy, so that ⌈size ÷ stride⌉ windows fit."""
    added = max((-(-source.size // stride) - 1) * stride + kernel - source.size, 0)
    return AutogradStep(Shape(source.channels, source.size + added), Saves.NOTHING)


def scaling(source: Shape) -> AutogradStep:
    """The gradient of a scale is a product as large as the image before it is summed."""
    return AutogradStep(source, Saves.INPUT, saves_first=True, work=source.elements)


def moving(source: Shape, work: int = 0) -> AutogradStep:
    return AutogradStep(source, Saves.NOTHING, hands_on=True, work=work)


def group_norm(source: Shape, two_passes: bool, strided: bool) -> Iterator[AutogradStep]:
    """In two passes the mean goes first. Strided channels change places, and change back."""
    if two_passes:
        yield moving(source)
    if strided:
        yield AutogradStep(source, Saves.NOTHING)
    yield AutogradStep(source, Saves.INPUT)
    if strided:
        yield AutogradStep(source, Saves.NOTHING)


INDEX = 2  # a position is a 64-bit number: the room of two elements


@dataclass(frozen=True)
class Operation:
    """What all operations have. Each says where it differs."""

    saves = Saves.INPUT
    in_place = False  # writes its result over what it was given
    is_product = False  # of weights and what it was given
    saves_first = False  # before it begins; products always do

    def shape(self, source: Shape) -> Shape:
        """What it makes."""
        return source

    @property
    def parameters(self) -> int:
        return 0

    def macs(self, source: Shape) -> int:
        """Multiply-adds."""
        del source
        return 0

    def aside(self, result: Shape) -> int:
        """Elements it keeps for its backward pass beside what it was given or made."""
        del result
        return 0

    def work(self, source: Shape) -> int:
        """Elements that its backward pass needs beside the gradient it makes."""
        del source
        return 0

    def steps(self, source: Shape) -> tuple[AutogradStep, ...]:
        """What it is to torch; the last step makes what the operation makes."""
        result, first = self.shape(source), self.is_product or self.saves_first
        aside, work = self.aside(result), self.work(source)
        step = AutogradStep(result, self.saves, self.in_place, self.is_product, first, aside, work)
        return (step,)

    def problem(self, source: Shape) -> str | None:
        """Why it cannot work on this, if so."""
        if self.every > 1 and source.size == 1:
            return "would shrink an image of 1 × 1 pixels"
        return None

    @property
    def every(self) -> int:
        """Of so many pixels in a row it takes one."""
        return 1


@dataclass(frozen=True)
class ConvSpec(Operation):
    """A convolution whose padding keeps the size: `same` puts the odd pixel at the far end."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    bias: bool = False
    groups: int = 1
    padding: str = "symmetric"
    init: InitRule = InitRule.HE
    is_product = True

    def shape(self, source: Shape) -> Shape:
        return Shape(self.outputs, (source.size - 1) // self.stride + 1)

    @property
    def parameters(self) -> int:
        weights = self.inputs // self.groups * self.outputs * self.kernel**2
        return weights + (self.outputs if self.bias else 0)

    def macs(self, source: Shape) -> int:
        return self.inputs // self.groups * self.kernel**2 * self.shape(source).elements

    def steps(self, source: Shape) -> tuple[AutogradStep, ...]:
        whole = super().steps(source)
        pads = self.padding == "same" and self.kernel > 1 and self.stride > 1
        return (padding(source, self.kernel, self.stride), *whole) if pads else whole

    @property
    def every(self) -> int:
        return self.stride


@dataclass(frozen=True)
class NormSpec(Operation):
    """Normalization with a scale and an offset per channel. `zero` starts the scale at 0."""

    channels: int
    kind: str  # "batch" or "group"
    groups: int
    eps: float
    momentum: float
    zero: bool = False
    scale: bool = True
    offset: bool = True
    strided: bool = False  # channel c belongs to group c mod G
    two_passes: bool = True  # the mean first, then the variance around it
    first_variance: float = 1.0  # of the running statistics

    @property
    def parameters(self) -> int:
        return (self.scale + self.offset) * self.channels

    def macs(self, source: Shape) -> int:
        return source.elements

    def steps(self, source: Shape) -> tuple[AutogradStep, ...]:
        if self.kind == "batch":
            return super().steps(source)
        return (*group_norm(source, self.two_passes, self.strided),)


@dataclass(frozen=True)
class ActivationSpec(Operation):
    """A function of each element. A rectifier works in place, so it needs no memory of its own."""

    kind: str  # relu, relu6, swish, hard_swish, sigmoid, hard_sigmoid

    @property
    def saves(self) -> Saves:  # type: ignore[override]  # of the kind, not of the class
        return Saves.RESULT if self.in_place or self.kind == "sigmoid" else Saves.INPUT

    @property
    def saves_first(self) -> bool:  # type: ignore[override]  # of the kind, not of the class
        return self.saves is Saves.INPUT

    @property
    def in_place(self) -> bool:  # type: ignore[override]  # of the kind, not of the class
        return self.kind == "relu"


@dataclass(frozen=True)
class AddSpec(Operation):
    """The main road and the side road meet."""

    saves = Saves.NOTHING


@dataclass(frozen=True)
class MultiplySpec(Operation):
    """The main road, one number a channel, scales the side road."""

    saves = Saves.BOTH
    saves_first = True

    def work(self, source: Shape) -> int:
        return source.elements  # a product that is about to be summed


@dataclass(frozen=True)
class ConcatSpec(Operation):
    """The channels of the side road behind those of the main road."""

    added: int
    saves = Saves.NOTHING

    def shape(self, source: Shape) -> Shape:
        return Shape(source.channels + self.added, source.size)


@dataclass(frozen=True)
class MaxPoolSpec(Operation):
    """3 × 3 windows, stride 2. Padding: symmetric, same, or none."""

    padding: str = "symmetric"

    def shape(self, source: Shape) -> Shape:
        covered = source.size - 3 if self.padding == "none" else source.size - 1
        return Shape(source.channels, covered // 2 + 1)

    def aside(self, result: Shape) -> int:
        return INDEX * result.elements

    def steps(self, source: Shape) -> tuple[AutogradStep, ...]:
        whole = super().steps(source)
        return (padding(source, 3, 2), *whole) if self.padding == "same" else whole

    @property
    def every(self) -> int:
        return 2

    def problem(self, source: Shape) -> str | None:
        if self.padding == "none" and source.size < 3:
            return f"needs 3 × 3 pixels and would get {source.size} × {source.size}"
        return super().problem(source)


@dataclass(frozen=True)
class SqueezeSpec(Operation):
    """The mean over the image, which stays an image of one pixel."""

    saves = Saves.NOTHING

    def shape(self, source: Shape) -> Shape:
        return Shape(source.channels, 1)


@dataclass(frozen=True)
class GlobalPoolSpec(Operation):
    """The mean over the image; what is left is a vector."""

    saves = Saves.NOTHING

    def shape(self, source: Shape) -> Shape:
        return Shape(source.channels, 1)


@dataclass(frozen=True)
class FlattenSpec(Operation):
    """An image of one pixel, seen as a vector: the same memory."""

    saves = Saves.NOTHING
    in_place = True


@dataclass(frozen=True)
class PadChannelsSpec(Operation):
    """Every `stride`-th pixel, and channels of zeros behind the given ones."""

    stride: int
    added: int
    saves = Saves.NOTHING

    def shape(self, source: Shape) -> Shape:
        return Shape(source.channels + self.added, (source.size - 1) // self.stride + 1)

    def work(self, source: Shape) -> int:
        """Between the two dimensions, whose strides are undone one after the other."""
        between = source.channels * source.size * self.shape(source).size
        return between if self.stride > 1 else 0

    @property
    def every(self) -> int:
        return self.stride


@dataclass(frozen=True)
class DropoutSpec(Operation):
    """Some elements become 0 in training, the others grow by as much."""

    rate: float
    saves = Saves.NOTHING
    saves_first = True

    def aside(self, result: Shape) -> int:
        return result.elements if self.rate else 0


@dataclass(frozen=True)
class DropPathSpec(Operation):
    """Stochastic depth: in training some samples lose this branch, the others' grows by as much."""

    rate: float
    saves = Saves.NOTHING
    saves_first = True

    def aside(self, result: Shape) -> int:
        del result
        return 1 if self.rate else 0


@dataclass(frozen=True)
class LinearSpec(Operation):
    """A fully connected layer with a bias."""

    inputs: int
    outputs: int
    init: InitRule = InitRule.TORCH
    is_product = True

    def shape(self, source: Shape) -> Shape:
        del source
        return Shape(self.outputs, 1)

    @property
    def parameters(self) -> int:
        return (self.inputs + 1) * self.outputs

    def macs(self, source: Shape) -> int:
        del source
        return self.inputs * self.outputs


@dataclass(frozen=True)
class ProxyActivationSpec(Operation):
    """An activation made standard for a normal input: four numbers a channel tell which."""

    channels: int
    kind: str
    eps: float
    scaled: bool  # whether its result is divided by the deviation
    recompute: bool  # in the backward pass

    @property
    def parameters(self) -> int:
        return 4 * self.channels

    def macs(self, source: Shape) -> int:
        return 2 * source.elements

    def work(self, source: Shape) -> int:
        """What is computed again, and a product that is about to be summed."""
        return (3 if self.scaled else 1) * source.elements

    def steps(self, source: Shape) -> tuple[AutogradStep, ...]:
        return super().steps(source) if self.recompute else (*self.chain(source, self.scaled),)

    def chain(self, source: Shape, scaled: bool) -> Iterator[AutogradStep]:
        """γ·x, + β, the activation, − μ, ÷ σ."""
        yield scaling(source)
        yield moving(source)
        saves = Saves.RESULT if self.kind == "relu" else Saves.INPUT
        yield AutogradStep(source, saves, saves_first=saves is Saves.INPUT)
        yield moving(source, work=source.elements)
        if scaled:
            yield scaling(source)


@dataclass(frozen=True)
class ProxySqueezeExciteSpec(Operation):
    """A proxy activation and squeeze-and-excite in one, for the deviation is divided out last."""

    proxy: ProxyActivationSpec
    reduce: ConvSpec
    expand: ConvSpec

    @property
    def parameters(self) -> int:
        return self.proxy.parameters + self.reduce.parameters + self.expand.parameters

    def macs(self, source: Shape) -> int:
        one = Shape(source.channels, 1)
        inner = self.reduce.macs(one) + self.expand.macs(self.reduce.shape(one))
        return self.proxy.macs(source) + inner + 2 * source.elements

    def work(self, source: Shape) -> int:
        return 3 * source.elements

    def steps(self, source: Shape) -> tuple[AutogradStep, ...]:
        """All but the convolutions of one pixel; the gate scales as the deviation does."""
        if self.proxy.recompute:
            return super().steps(source)
        return (*self.proxy.chain(source, scaled=True),)
