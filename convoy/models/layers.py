"""Layer specs: what each layer computes and costs, without creating tensors.

Layers pass a small bundle of tensors along: one tensor in a plain chain, two inside a residual
block (main branch and shortcut), three where a gate branches off inside the block. A stage can
therefore start at any layer.

    MAIN  (x, …)    → (f(x), …)         FORK    (x, …)  → (f(x), x, …)   start a branch with x
    SIDE  (x, s, …) → (x, f(s), …)      BRANCH  (x, …)  → (x, f(x), …)   start a branch with f(x)
    JOIN  (x, s, …) → (f(x, s), …)                                       end a branch
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from math import prod
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """The shape of one sample: (channels, size, size)."""

    channels: int
    size: int  # height and width; 1 after global pooling

    @property
    def elements(self) -> int:
        return self.channels * self.size * self.size


class InitRule(StrEnum):
    """Initialization of weights as in the reference applications. A bias starts at 0 unless noted.

    inputs and outputs are channels, area is the number of kernel elements:
    fan_in = inputs ÷ groups × area        fan_out = outputs × area
    """

    TORCH_DEFAULT = "uniform in ± 1 ÷ √fan_in, including the bias"
    KAIMING_NORMAL_FAN_OUT = "normal with variance 2 ÷ fan_out"
    KAIMING_NORMAL_GROUP_FAN_OUT = "normal with variance 2 ÷ (fan_out ÷ groups)"
    TRUNC_NORMAL_FAN_IN = "normal truncated at 2 sigma, with variance 1 ÷ fan_in"
    TRUNC_KAIMING_FAN_OUT = "normal truncated at 2 sigma, with variance 2 ÷ fan_out"
    TRUNC_KAIMING_FAN_IN = "normal truncated at 2 sigma, with variance 2 ÷ fan_in"
    XAVIER_UNIFORM = "uniform in ± √(6 ÷ (inputs + outputs)), independent of the kernel"
    UNIFORM_OUT_FEATURES = "uniform in ± 1 ÷ √outputs"
    KAIMING_UNIFORM_FAN_IN = "uniform with variance 2 ÷ fan_in"
    NORMAL_STD_001 = "normal with standard deviation 0.01"


@dataclass(frozen=True)
class OpSpec:
    """Base class of layer operations: keeps the shape, has no parameters and costs nothing."""

    def output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    @property
    def parameters(self) -> int:
        return 0

    def macs(self, input_shape: Shape) -> int:
        """Multiply-adds per sample, of convolutions and linear layers, as torchvision counts."""
        del input_shape
        return 0

    def work(self, input_shape: Shape) -> int:
        """The cost that stages are balanced by: multiply-adds, and the elements of norms."""
        return self.macs(input_shape)


@dataclass(frozen=True)
class ConvSpec(OpSpec):
    """A convolution with size-preserving padding; `same` puts an odd pixel at the bottom right."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    bias: bool = False
    groups: int = 1
    padding: str = "symmetric"
    init: InitRule = InitRule.KAIMING_NORMAL_FAN_OUT

    def output_shape(self, input_shape: Shape) -> Shape:
        return Shape(self.outputs, (input_shape.size - 1) // self.stride + 1)

    @property
    def parameters(self) -> int:
        weights = self.inputs // self.groups * self.outputs * self.kernel**2
        return weights + (self.outputs if self.bias else 0)

    def macs(self, input_shape: Shape) -> int:
        return self.inputs // self.groups * self.kernel**2 * self.output_shape(input_shape).elements


@dataclass(frozen=True)
class NormSpec(OpSpec):
    """Normalization with a scale and an offset per channel. `zero_init` starts the scale at 0."""

    channels: int
    kind: str  # "batch" or "group"
    groups: int
    eps: float
    momentum: float
    zero_init: bool = False
    scale: bool = True
    offset: bool = True
    interleaved_groups: bool = False  # channel c is in group c mod G, not c // size
    stable: bool = True  # compute statistics in two passes
    initial_running_var: float = 1.0

    @property
    def parameters(self) -> int:
        return (self.scale + self.offset) * self.channels

    def work(self, input_shape: Shape) -> int:
        return input_shape.elements


@dataclass(frozen=True)
class ActivationSpec(OpSpec):
    """An elementwise activation. ReLU works in place and allocates no memory."""

    kind: str  # relu, relu6, swish, hard_swish, sigmoid, hard_sigmoid


@dataclass(frozen=True)
class AddSpec(OpSpec):
    """Add the side branch to the main branch."""


@dataclass(frozen=True)
class MultiplySpec(OpSpec):
    """Multiply the main branch by the side branch (one value per channel)."""


@dataclass(frozen=True)
class ConcatSpec(OpSpec):
    """Concatenate the channels of the side branch to those of the main branch."""

    extra_channels: int

    def output_shape(self, input_shape: Shape) -> Shape:
        return Shape(input_shape.channels + self.extra_channels, input_shape.size)


@dataclass(frozen=True)
class MaxPoolSpec(OpSpec):
    """Max pooling with 3 × 3 windows and stride 2; padding is symmetric, same or none."""

    padding: str = "symmetric"

    def output_shape(self, input_shape: Shape) -> Shape:
        covered = input_shape.size - 3 if self.padding == "none" else input_shape.size - 1
        return Shape(input_shape.channels, covered // 2 + 1)


@dataclass(frozen=True)
class SpatialMeanSpec(OpSpec):
    """Global average pooling to a 1 × 1 image."""

    def output_shape(self, input_shape: Shape) -> Shape:
        return Shape(input_shape.channels, 1)


class GlobalPoolSpec(SpatialMeanSpec):
    """Global average pooling to a vector."""


@dataclass(frozen=True)
class FlattenSpec(OpSpec):
    """View a 1 × 1 image as a vector."""


@dataclass(frozen=True)
class PadChannelsSpec(OpSpec):
    """Subsample by `stride` and append zero channels."""

    stride: int
    extra_channels: int

    def output_shape(self, input_shape: Shape) -> Shape:
        return Shape(
            input_shape.channels + self.extra_channels, (input_shape.size - 1) // self.stride + 1
        )


@dataclass(frozen=True)
class DropoutSpec(OpSpec):
    """Dropout of single elements."""

    rate: float


@dataclass(frozen=True)
class DropPathSpec(OpSpec):
    """Stochastic depth: drops the residual branch of random samples."""

    rate: float


@dataclass(frozen=True)
class LinearSpec(OpSpec):
    """A fully connected layer with a bias."""

    inputs: int
    outputs: int
    init: InitRule = InitRule.TORCH_DEFAULT

    def output_shape(self, input_shape: Shape) -> Shape:
        del input_shape
        return Shape(self.outputs, 1)

    @property
    def parameters(self) -> int:
        return (self.inputs + 1) * self.outputs

    def macs(self, input_shape: Shape) -> int:
        del input_shape
        return self.inputs * self.outputs


@dataclass(frozen=True)
class ProxyActivationSpec(OpSpec):
    """A proxy-normalized activation, with four parameters per channel."""

    channels: int
    kind: str
    eps: float
    scaled: bool  # divide the output by the standard deviation
    recompute: bool  # in the backward pass, instead of saving tensors

    @property
    def parameters(self) -> int:
        return 4 * self.channels

    def work(self, input_shape: Shape) -> int:
        return 2 * input_shape.elements


@dataclass(frozen=True)
class ProxySqueezeExciteSpec(OpSpec):
    """A proxy activation fused with squeeze-and-excite; the scaling comes after the gate."""

    proxy: ProxyActivationSpec
    reduce: ConvSpec
    expand: ConvSpec

    @property
    def parameters(self) -> int:
        return self.proxy.parameters + self.reduce.parameters + self.expand.parameters

    def macs(self, input_shape: Shape) -> int:
        pooled = Shape(input_shape.channels, 1)
        return self.reduce.macs(pooled) + self.expand.macs(self.reduce.output_shape(pooled))

    def work(self, input_shape: Shape) -> int:
        return self.proxy.work(input_shape) + self.macs(input_shape) + 2 * input_shape.elements


@dataclass(frozen=True)
class ModuleSpec(OpSpec):
    """A layer of a user's own network, as traced for one image size."""

    model: str  # name of the network
    classes: int
    seed: int
    parameter_sizes: tuple[tuple[str, int], ...]  # name in the module, and elements
    output_dims: tuple[int, ...]  # of one sample
    multiply_adds: int
    saved_elements: int  # that autograd saves per sample, besides the input

    def output_shape(self, input_shape: Shape) -> Shape:
        del input_shape
        return Shape(prod(self.output_dims), 1)

    @property
    def parameters(self) -> int:
        return sum(elements for _, elements in self.parameter_sizes)

    def macs(self, input_shape: Shape) -> int:
        del input_shape
        return self.multiply_adds


class Route(Enum):
    """Which tensor of the bundle a layer reads, and where its output goes."""

    MAIN = "main"
    FORK = "fork"
    BRANCH = "branch"
    SIDE = "side"
    JOIN = "join"


@dataclass(frozen=True)
class LayerPlan:
    name: str
    operation: OpSpec
    route: Route = Route.MAIN


@dataclass(frozen=True)
class LayerCost:
    """Bundle shapes, parameters, multiply-adds and work of a layer for one sample."""

    name: str
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]
    parameters: int
    macs: int
    work: int


def layer_costs(layers: Sequence[LayerPlan], image: Shape) -> tuple[LayerCost, ...]:
    """Trace one image through the layers."""
    costs: list[LayerCost] = []
    bundle: tuple[Shape, ...] = (image,)
    for layer in layers:
        operation, input_shape = layer.operation, layer_input(layer.route, bundle)
        after = bundle_after(layer.route, bundle, operation.output_shape(input_shape))
        macs, work = operation.macs(input_shape), operation.work(input_shape)
        costs.append(LayerCost(layer.name, bundle, after, operation.parameters, macs, work))
        bundle = after
    return tuple(costs)


def layer_input(route: Route, bundle: tuple[T, ...]) -> T:
    """The tensor that a layer reads (of a JOIN, the one on the main branch)."""
    return bundle[1] if route is Route.SIDE else bundle[0]


def bundle_after(route: Route, bundle: tuple[T, ...], output: T) -> tuple[T, ...]:
    """The bundle after a layer with this output."""
    match route:
        case Route.MAIN:
            return (output, *bundle[1:])
        case Route.FORK:
            return (output, *bundle)
        case Route.BRANCH:
            return (bundle[0], output, *bundle[1:])
        case Route.SIDE:
            return (bundle[0], output, *bundle[2:])
        case Route.JOIN:
            return (output, *bundle[2:])
