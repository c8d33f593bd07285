"""What a layer is, what it computes and what it costs, before any tensor exists.

Between two layers travels a small bundle of tensors: one on a plain road, two inside a residual
block, where a side road goes around the convolutions, three where a gate branches off inside it.
So a stage can begin anywhere.

    MAIN  (x, …)    → (f(x), …)           FORK  (x, …)    → (f(x), x, …)   a side road begins
    SIDE  (x, s, …) → (x, f(s), …)        SPUR  (x, …)    → (x, f(x), …)   … with something made
    JOIN  (x, s, …) → (f(x, s), …)                                         a side road ends
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """One sample of one tensor."""

    channels: int
    size: int  # height and width; 1 after pooling over the whole image

    @property
    def elements(self) -> int:
        return self.channels * self.size * self.size


class InitRule(StrEnum):
    """How weights begin, as in each of the reference applications. A bias begins at 0, or alike.

    inputs and outputs are channels, area the pixels of a kernel:
    fan_in = inputs ÷ groups × area        fan_out = outputs × area
    """

    TORCH = "uniform in ± 1 ÷ √fan_in, the bias too"
    HE = "normal of variance 2 ÷ fan_out"
    HE_OF_GROUP = "normal of variance 2 ÷ (fan_out ÷ groups)"
    LECUN = "normal cut off at two sigma, of variance 1 ÷ fan_in"
    CUT_HE = "normal cut off at two sigma, of variance 2 ÷ fan_out"
    CUT_HE_OF_GROUP = "normal cut off at two sigma, of variance 2 ÷ fan_in"
    GLOROT = "uniform in ± √(6 ÷ (inputs + outputs)), whatever the kernel"
    OUTPUTS = "uniform in ± 1 ÷ √outputs"
    HE_OF_INPUTS = "uniform of variance 2 ÷ fan_in"
    SMALL = "normal of deviation 0.01"


@dataclass(frozen=True)
class Operation:
    """What all operations have. Each says where it differs."""

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

    def shape(self, source: Shape) -> Shape:
        return Shape(self.outputs, (source.size - 1) // self.stride + 1)

    @property
    def parameters(self) -> int:
        weights = self.inputs // self.groups * self.outputs * self.kernel**2
        return weights + (self.outputs if self.bias else 0)

    def macs(self, source: Shape) -> int:
        return self.inputs // self.groups * self.kernel**2 * self.shape(source).elements


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


@dataclass(frozen=True)
class ActivationSpec(Operation):
    """A function of each element. A rectifier works in place, so it needs no memory of its own."""

    kind: str  # relu, relu6, swish, hard_swish, sigmoid, hard_sigmoid


@dataclass(frozen=True)
class AddSpec(Operation):
    """The main road and the side road meet."""


@dataclass(frozen=True)
class MultiplySpec(Operation):
    """The main road, one number a channel, scales the side road."""


@dataclass(frozen=True)
class ConcatSpec(Operation):
    """The channels of the side road behind those of the main road."""

    added: int

    def shape(self, source: Shape) -> Shape:
        return Shape(source.channels + self.added, source.size)


@dataclass(frozen=True)
class MaxPoolSpec(Operation):
    """3 × 3 windows, stride 2. Padding: symmetric, same, or none."""

    padding: str = "symmetric"

    def shape(self, source: Shape) -> Shape:
        covered = source.size - 3 if self.padding == "none" else source.size - 1
        return Shape(source.channels, covered // 2 + 1)


@dataclass(frozen=True)
class SqueezeSpec(Operation):
    """The mean over the image, which stays an image of one pixel."""

    def shape(self, source: Shape) -> Shape:
        return Shape(source.channels, 1)


class GlobalPoolSpec(SqueezeSpec):
    """The mean over the image; what is left is a vector."""


@dataclass(frozen=True)
class FlattenSpec(Operation):
    """An image of one pixel, seen as a vector: the same memory."""


@dataclass(frozen=True)
class PadChannelsSpec(Operation):
    """Every `stride`-th pixel, and channels of zeros behind the given ones."""

    stride: int
    added: int

    def shape(self, source: Shape) -> Shape:
        return Shape(source.channels + self.added, (source.size - 1) // self.stride + 1)


@dataclass(frozen=True)
class DropoutSpec(Operation):
    """Some elements become 0 in training, the others grow by as much."""

    rate: float


@dataclass(frozen=True)
class DropPathSpec(Operation):
    """Stochastic depth: in training some samples lose this branch, the others' grows by as much."""

    rate: float


@dataclass(frozen=True)
class LinearSpec(Operation):
    """A fully connected layer with a bias."""

    inputs: int
    outputs: int
    init: InitRule = InitRule.TORCH

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


class Route(Enum):
    """Which tensors of the bundle a layer takes, and where it puts its result."""

    MAIN = "main"
    FORK = "fork"
    SPUR = "spur"
    SIDE = "side"
    JOIN = "join"


@dataclass(frozen=True)
class LayerPlan:
    """One named layer of a network."""

    name: str
    operation: Operation
    route: Route = Route.MAIN


@dataclass(frozen=True)
class LayerCost:
    """A layer for one sample of a given size: what travels in and out, and its work."""

    name: str
    bundle_in: tuple[Shape, ...]
    bundle_out: tuple[Shape, ...]
    parameters: int
    macs: int


def layer_costs(layers: Sequence[LayerPlan], image: Shape) -> tuple[LayerCost, ...]:
    """Follow one image through the layers."""
    costs: list[LayerCost] = []
    bundle: tuple[Shape, ...] = (image,)
    for layer in layers:
        operation, source = layer.operation, taken(layer.route, bundle)
        after = put(layer.route, bundle, operation.shape(source))
        macs = operation.macs(source)
        costs.append(LayerCost(layer.name, bundle, after, operation.parameters, macs))
        bundle = after
    return tuple(costs)


def taken(route: Route, bundle: tuple[T, ...]) -> T:
    """The tensor that a layer works on; the side road's half of a sum is not meant."""
    return bundle[1] if route is Route.SIDE else bundle[0]


def put(route: Route, bundle: tuple[T, ...], result: T) -> tuple[T, ...]:
    """The bundle behind a layer that has made this out of it."""
    match route:
        case Route.MAIN:
            return (result, *bundle[1:])
        case Route.FORK:
            return (result, *bundle)
        case Route.SPUR:
            return (bundle[0], result, *bundle[1:])
        case Route.SIDE:
            return (bundle[0], result, *bundle[2:])
        case Route.JOIN:
            return (result, *bundle[2:])
