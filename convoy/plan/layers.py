"""What a layer is and what it costs, before any tensor exists.

Between two layers travels a small bundle of tensors: one on a plain road, two inside a residual
block, where a side road goes around the convolutions. So a stage can begin anywhere.

    MAIN  (x, …)    → (f(x), …)           FORK  (x, …)    → (f(x), x, …)   the side road begins
    SIDE  (x, s, …) → (x, f(s), …)        JOIN  (x, s, …) → (f(x, s), …)   the side road ends
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

T = TypeVar("T")

INDEX = 2  # a position is a 64-bit number: the room of two elements


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
class Weightless:
    """What operations without weights share."""

    parameters = 0

    def shape(self, given: Shape) -> Shape:
        return given

    def macs(self, given: Shape) -> int:
        del given
        return 0


@dataclass(frozen=True)
class Relu(Weightless):
    """Works in place, so its result needs no memory of its own."""


@dataclass(frozen=True)
class Add(Weightless):
    """The main road and the side road meet."""


@dataclass(frozen=True)
class MaxPool(Weightless):
    """3 × 3 windows, stride 2, padding 1."""

    def shape(self, given: Shape) -> Shape:
        return Shape(given.channels, (given.size - 1) // 2 + 1)


@dataclass(frozen=True)
class GlobalPool(Weightless):
    """The mean over the image; what is left is a vector."""

    def shape(self, given: Shape) -> Shape:
        return Shape(given.channels, 1)


@dataclass(frozen=True)
class PadChannels(Weightless):
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
    kept: int  # elements of its result that are kept for the backward pass
    in_place: bool  # writes its result over what it was given


def layer_costs(layers: Sequence[LayerPlan], image: Shape) -> tuple[LayerCost, ...]:
    """Follow one image through the layers."""
    costs: list[LayerCost] = []
    bundle: tuple[Shape, ...] = (image,)
    kept = _kept_results(layers)
    for index, layer in enumerate(layers):
        given = taken(layer.route, bundle)
        made = layer.operation.shape(given)
        after = put(layer.route, bundle, made)
        positions = INDEX * made.elements if isinstance(layer.operation, MaxPool) else 0
        costs.append(
            LayerCost(
                layer.name,
                bundle,
                after,
                layer.operation.parameters,
                layer.operation.macs(given),
                positions + (made.elements if index in kept else 0),
                isinstance(layer.operation, Relu),
            )
        )
        bundle = after
    return tuple(costs)


def _kept_results(layers: Iterable[LayerPlan]) -> set[int]:
    """The layers whose results stay until the backward pass; the loss keeps the last one.

    A convolution, norm, pooling by maximum or linear layer needs what it was given, a rectifier
    what it made, which lies in the same place. Sums, means and padding need nothing.
    """
    kept: set[int] = set()
    makers: tuple[int, ...] = (-1,)  # of each tensor of the bundle
    for index, layer in enumerate(layers):
        maker = taken(layer.route, makers)
        if not isinstance(layer.operation, Add | GlobalPool | PadChannels):
            kept.add(maker)
        made_by = maker if isinstance(layer.operation, Relu) else index
        makers = put(layer.route, makers, made_by)
    return kept | {makers[0]}


def taken(route: Route, bundle: tuple[T, ...]) -> T:
    """The tensor that a layer works on; the side road's half of a sum is not meant."""
    return bundle[1] if route is Route.SIDE else bundle[0]


def put(route: Route, bundle: tuple[T, ...], made: T) -> tuple[T, ...]:
    """The bundle behind a layer that has made this out of it."""
    match route:
        case Route.MAIN:
            return (made, *bundle[1:])
        case Route.FORK:
            return (made, *bundle)
        case Route.SIDE:
            return (bundle[0], made, *bundle[2:])
        case Route.JOIN:
            return (made, *bundle[2:])
