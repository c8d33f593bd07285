"""What a layer is and what it costs, before any tensor exists.

Between two layers travels a small bundle of tensors: one on a plain road, two inside a residual
block, where a side road goes around the convolutions. So a stage can begin anywhere.

    MAIN  (x, …)    → (f(x), …)           FORK  (x, …)    → (f(x), x, …)   the side road begins
    SIDE  (x, s, …) → (x, f(s), …)        JOIN  (x, s, …) → (f(x, s), …)   the side road ends
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Route(Enum):
    """Which tensors of the bundle a layer takes, and where it puts its result."""

    MAIN = "main"
    FORK = "fork"
    SIDE = "side"
    JOIN = "join"


@dataclass(frozen=True)
class Shape:
    """One sample of one tensor."""

    channels: int
    size: int  # height and width; 1 after pooling over the whole image

    @property
    def elements(self) -> int:
        return self.channels * self.size * self.size


@dataclass(frozen=True)
class Conv:
    """A convolution with symmetric padding."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    bias: bool = False

    def shape(self, given: Shape) -> Shape:
        return Shape(self.outputs, (given.size - 1) // self.stride + 1)

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.kernel**2 + (self.outputs if self.bias else 0)

    def macs(self, given: Shape) -> int:
        return self.inputs * self.kernel**2 * self.shape(given).elements


@dataclass(frozen=True)
class Norm:
    """Normalization with a scale and an offset per channel. `zero` starts the scale at 0."""

    channels: int
    kind: str  # "batch" or "group"
    groups: int
    eps: float
    momentum: float
    zero: bool = False

    def shape(self, given: Shape) -> Shape:
        return given

    @property
    def parameters(self) -> int:
        return 2 * self.channels

    def macs(self, given: Shape) -> int:
        return given.elements


@dataclass(frozen=True)
class Relu:
    """Works in place, so its result needs no memory of its own."""

    parameters = 0

    def shape(self, given: Shape) -> Shape:
        return given

    def macs(self, given: Shape) -> int:
        del given
        return 0


@dataclass(frozen=True)
class Add(Relu):
    """The main road and the side road meet."""


@dataclass(frozen=True)
class MaxPool(Relu):
    """3 × 3 windows, stride 2, padding 1."""

    def shape(self, given: Shape) -> Shape:
        return Shape(given.channels, (given.size - 1) // 2 + 1)


@dataclass(frozen=True)
class GlobalPool(Relu):
    """The mean over the image; what is left is a vector."""

    def shape(self, given: Shape) -> Shape:
        return Shape(given.channels, 1)


@dataclass(frozen=True)
class PadChannels(Relu):
    """Every `stride`-th pixel, and channels of zeros behind the given ones."""

    stride: int
    added: int

    def shape(self, given: Shape) -> Shape:
        return Shape(given.channels + self.added, (given.size - 1) // self.stride + 1)


@dataclass(frozen=True)
class Linear:
    """A fully connected layer with a bias."""

    inputs: int
    outputs: int

    def shape(self, given: Shape) -> Shape:
        del given
        return Shape(self.outputs, 1)

    @property
    def parameters(self) -> int:
        return (self.inputs + 1) * self.outputs

    def macs(self, given: Shape) -> int:
        del given
        return self.inputs * self.outputs


Operation = Conv | Norm | Relu | Add | MaxPool | GlobalPool | PadChannels | Linear


@dataclass(frozen=True)
class LayerPlan:
    """One named layer of a network."""

    name: str
    operation: Operation
    route: Route = Route.MAIN


@dataclass(frozen=True)
class LayerCost:
    """A layer for one sample of a given size: what travels in and out, work and memory."""

    name: str
    bundle_in: tuple[Shape, ...]
    bundle_out: tuple[Shape, ...]
    parameters: int
    macs: int
    kept: int  # elements kept for the backward pass


def layer_costs(layers: Iterable[LayerPlan], image: Shape) -> tuple[LayerCost, ...]:
    """Follow one image through the layers."""
    costs: list[LayerCost] = []
    bundle: tuple[Shape, ...] = (image,)
    for layer in layers:
        given = bundle[1] if layer.route is Route.SIDE else bundle[0]
        made = layer.operation.shape(given)
        after = _after(layer.route, bundle, made)
        kept = 0 if type(layer.operation) is Relu else made.elements
        costs.append(
            LayerCost(
                layer.name,
                bundle,
                after,
                layer.operation.parameters,
                layer.operation.macs(given),
                kept,
            )
        )
        bundle = after
    return tuple(costs)


def _after(route: Route, bundle: tuple[Shape, ...], made: Shape) -> tuple[Shape, ...]:
    match route:
        case Route.MAIN:
            return (made, *bundle[1:])
        case Route.FORK:
            return (made, *bundle)
        case Route.SIDE:
            return (bundle[0], made, *bundle[2:])
        case Route.JOIN:
            return (made, *bundle[2:])
