"""Layers as the configuration wants them (padding, norms, initialisation), and the inverted
residual block that EfficientNet and MobileNet are made of.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.models.layers import (
    ActivationSpec,
    AddSpec,
    ConvSpec,
    DropPathSpec,
    InitRule,
    LayerPlan,
    LinearSpec,
    MultiplySpec,
    NormSpec,
    PadChannelsSpec,
    ProxyActivationSpec,
    ProxySqueezeExciteSpec,
    Route,
    SqueezeSpec,
)

DEFAULT_FAMILY = FamilyConfig()


class NormParameters(Enum):
    """The parameters that a norm has for each channel."""

    BOTH = "scale and offset"
    ZERO = "scale and offset, and the scale starts at 0"
    SCALE = "scale only"
    NOTHING = "nothing"


@dataclass(frozen=True)
class InitRules:
    """The initialisation rules of a family."""

    plain: InitRule
    grouped: InitRule
    head: InitRule


# What the TensorFlow and PopART applications do in all of their families but one.
INIT_RULES = {
    "tensorflow": InitRules(InitRule.LECUN, InitRule.LECUN, InitRule.GLOROT),
    "popart": InitRules(InitRule.GLOROT, InitRule.GLOROT, InitRule.GLOROT),
}


class LayerFactory:
    """Holds what every layer needs to know, so that a family reads like its network."""

    def __init__(self, config: NetworkConfig, init_rules: dict[str, InitRules]) -> None:
        self.config = config
        self.init = (INIT_RULES | init_rules)[config.weight_init]

    def image(self, channels: int) -> tuple[int, list[LayerPlan]]:
        """The channels that the first convolution sees, and the layer that pads them, if any."""
        if not self.config.input_image_padding:
            return channels, []
        return channels + 1, [LayerPlan("pad", PadChannelsSpec(1, 1))]

    def conv(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> ConvSpec:
        """A convolution followed by a norm; without norms it has a bias."""
        bias = self.config.norm_type == "none"
        rule = self.init.grouped if groups > 1 else self.init.plain
        padding = self.config.conv_padding
        return ConvSpec(inputs, outputs, kernel, stride, bias, groups, padding, rule)

    def gate_conv(self, inputs: int, outputs: int) -> ConvSpec:
        """A convolution of one pixel, with a bias and no norm."""
        return ConvSpec(inputs, outputs, 1, bias=True, init=self.init.plain)

    def head(self, inputs: int, classes: int) -> LinearSpec:
        return LinearSpec(inputs, classes, self.init.head)

    def norm(
        self,
        name: str,
        channels: int,
        route: Route = Route.MAIN,
        parameters: NormParameters = NormParameters.BOTH,
    ) -> Iterator[LayerPlan]:
        """The norm after a convolution, if there are norms."""
        config = self.config
        if config.norm_type == "none":
            return
        norm = NormSpec(
            channels,
            config.norm_type,
            config.norm_num_groups,
            config.norm_eps,
            config.batchnorm_momentum,
            zero=parameters is NormParameters.ZERO,
            scale=parameters is not NormParameters.NOTHING,
            offset=parameters in (NormParameters.BOTH, NormParameters.ZERO),
            strided=config.enable_fast_groupnorm,
            two_passes=config.stable_norm,
            first_variance=0.0 if config.weight_init == "popart" else 1.0,
        )
        yield LayerPlan(name, norm, route)


def activation(name: str, kind: str = "relu") -> LayerPlan:
    """A function of each element."""
    return LayerPlan(name, ActivationSpec(kind))


@dataclass(frozen=True)
class Gate:
    """Squeeze-and-excite: the mean of each channel, through a bottleneck, scales the channel."""

    inner: int
    activation: str
    outer: str  # sigmoid or hard_sigmoid


@dataclass(frozen=True)
class Proxy:
    """Proxy-normalized activations: they correct what the norm before them lost."""

    eps: float
    recompute: bool

    def spec(self, kind: str, channels: int, scaled: bool) -> ProxyActivationSpec:
        return ProxyActivationSpec(channels, kind, self.eps, scaled, self.recompute)


def norm_before_activation(
    factory: LayerFactory, name: str, channels: int, proxy: Proxy | None
) -> Iterator[LayerPlan]:
    """A proxy activation has scale and offset itself."""
    parameters = NormParameters.NOTHING if proxy else NormParameters.BOTH
    return factory.norm(name, channels, parameters=parameters)


def activation_after_norm(
    name: str, kind: str, channels: int, proxy: Proxy | None, scaled: bool = True
) -> LayerPlan:
    operation = ActivationSpec(kind) if proxy is None else proxy.spec(kind, channels, scaled)
    return LayerPlan(name, operation)


@dataclass(frozen=True)
class InvertedBlock:
    """An inverted residual block: widen, filter, gate, narrow, add.

    Named as timm does; a block that does not widen has other names for the same positions.
    """

    inputs: int
    hidden: int
    outputs: int
    kernel: int
    stride: int
    groups: int
    activation: str
    gate: Gate | None = None
    drop: float = 0.0
    proxy: Proxy | None = None
    widens: bool = True

    @property
    def has_shortcut(self) -> bool:
        return self.stride == 1 and self.inputs == self.outputs

    def layers(self, name: str, factory: LayerFactory) -> Iterator[LayerPlan]:
        fork = Route.FORK if self.has_shortcut else Route.MAIN
        middle, last, narrow = ("2", "3", "conv_pwl") if self.widens else ("1", "2", "conv_pw")
        if self.widens:
            widen = factory.conv(self.inputs, self.hidden)
            yield LayerPlan(f"{name}/conv_pw", widen, fork)
            yield from norm_before_activation(factory, f"{name}/bn1", self.hidden, self.proxy)
            yield self._activation(f"{name}/act1")
            fork = Route.MAIN
        depthwise = factory.conv(self.hidden, self.hidden, self.kernel, self.stride, self.groups)
        depthwise = replace(depthwise, init=factory.init.grouped)  # a single group too
        yield LayerPlan(f"{name}/conv_dw", depthwise, fork)
        yield from norm_before_activation(factory, f"{name}/bn{middle}", self.hidden, self.proxy)
        yield from self._gated(name, f"act{middle}", factory)
        yield LayerPlan(f"{name}/{narrow}", factory.conv(self.hidden, self.outputs))
        # No activation follows this norm, so it keeps its scale.
        parameters = NormParameters.SCALE if self.proxy else NormParameters.BOTH
        yield from factory.norm(f"{name}/bn{last}", self.outputs, parameters=parameters)
        if self.has_shortcut:
            if self.drop:
                yield LayerPlan(f"{name}/drop_path", DropPathSpec(self.drop))
            yield LayerPlan(f"{name}/add", AddSpec(), Route.JOIN)

    def _activation(self, name: str) -> LayerPlan:
        return activation_after_norm(name, self.activation, self.hidden, self.proxy)

    def _gated(self, name: str, position: str, factory: LayerFactory) -> Iterator[LayerPlan]:
        """The activation and the gate after the depthwise convolution."""
        gate = self.gate
        if gate is None:
            yield self._activation(f"{name}/{position}")
            return
        reduce = factory.gate_conv(self.hidden, gate.inner)
        expand = factory.gate_conv(gate.inner, self.hidden)
        if self.proxy:
            proxy = self.proxy.spec(self.activation, self.hidden, scaled=False)
            yield LayerPlan(f"{name}/se", ProxySqueezeExciteSpec(proxy, reduce, expand))
            return
        yield self._activation(f"{name}/{position}")
        yield LayerPlan(f"{name}/se/pool", SqueezeSpec(), Route.SPUR)
        yield LayerPlan(f"{name}/se/conv_reduce", reduce, Route.SIDE)
        yield LayerPlan(f"{name}/se/act1", ActivationSpec(gate.activation), Route.SIDE)
        yield LayerPlan(f"{name}/se/conv_expand", expand, Route.SIDE)
        yield LayerPlan(f"{name}/se/gate", ActivationSpec(gate.outer), Route.SIDE)
        yield LayerPlan(f"{name}/se/mul", MultiplySpec(), Route.JOIN)
