"""LayerFactory, which applies the configured padding, norms and initialization, and the inverted
residual block of EfficientNet and MobileNet.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

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
    SpatialMeanSpec,
)

DEFAULT_FAMILY = FamilyConfig()


@dataclass(frozen=True)
class InitRules:
    """The initialization rules of a family."""

    conv: InitRule
    grouped_conv: InitRule
    classifier: InitRule


# The rules of the TensorFlow and PopART applications for all families but one.
INIT_RULES = {
    "tensorflow": InitRules(
        InitRule.TRUNC_NORMAL_FAN_IN, InitRule.TRUNC_NORMAL_FAN_IN, InitRule.XAVIER_UNIFORM
    ),
    "popart": InitRules(InitRule.XAVIER_UNIFORM, InitRule.XAVIER_UNIFORM, InitRule.XAVIER_UNIFORM),
}


class LayerFactory:
    """Creates layer specs with the configured padding, norm and initialization."""

    def __init__(self, config: NetworkConfig, init_rules: dict[str, InitRules]) -> None:
        self.config = config
        self.init = (INIT_RULES | init_rules)[config.weight_init]

    def padded_input(self, channels: int) -> tuple[int, list[LayerPlan]]:
        """Return the input channels of the first convolution and the padding layer, if any."""
        if not self.config.input_image_padding:
            return channels, []
        return channels + 1, [LayerPlan("pad", PadChannelsSpec(1, 1))]

    def conv(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> ConvSpec:
        """A convolution followed by a norm; it has a bias only if norms are off."""
        bias = self.config.norm_type == "none"
        rule = self.init.grouped_conv if groups > 1 else self.init.conv
        padding = self.config.conv_padding
        return ConvSpec(inputs, outputs, kernel, stride, bias, groups, padding, rule)

    def pointwise_conv(self, inputs: int, outputs: int) -> ConvSpec:
        """A 1 × 1 convolution with a bias and no norm."""
        return ConvSpec(inputs, outputs, 1, bias=True, init=self.init.conv)

    def classifier(self, inputs: int, classes: int) -> LinearSpec:
        return LinearSpec(inputs, classes, self.init.classifier)

    def norm(
        self,
        name: str,
        channels: int,
        route: Route = Route.MAIN,
        zero_init: bool = False,
        scale: bool = True,
        offset: bool = True,
    ) -> Iterator[LayerPlan]:
        """The norm after a convolution, unless norms are off; `zero_init` starts its scale at 0."""
        config = self.config
        if config.norm_type == "none":
            return
        norm = NormSpec(
            channels,
            config.norm_type,
            config.norm_num_groups,
            config.norm_eps,
            config.batchnorm_momentum,
            zero_init,
            scale,
            offset,
            interleaved_groups=config.enable_fast_groupnorm,
            stable=config.stable_norm,
            initial_running_var=0.0 if config.weight_init == "popart" else 1.0,
        )
        yield LayerPlan(name, norm, route)


def activation(name: str, kind: str = "relu") -> LayerPlan:
    return LayerPlan(name, ActivationSpec(kind))


@dataclass(frozen=True)
class SqueezeExcite:
    """Squeeze-and-excite: a gate per channel, computed from channel means by a bottleneck."""

    reduced_channels: int
    activation: str
    gate_activation: str  # sigmoid or hard_sigmoid


@dataclass(frozen=True)
class ProxyNorm:
    """Proxy normalization of activations, for networks with batch-independent norms."""

    eps: float
    recompute: bool

    def spec(self, kind: str, channels: int, scaled: bool) -> ProxyActivationSpec:
        return ProxyActivationSpec(channels, kind, self.eps, scaled, self.recompute)


def norm_before_activation(
    factory: LayerFactory, name: str, channels: int, proxy: ProxyNorm | None
) -> Iterator[LayerPlan]:
    """The norm before an activation; a proxy activation already has a scale and an offset."""
    return factory.norm(name, channels, scale=proxy is None, offset=proxy is None)


def activation_after_norm(
    name: str, kind: str, channels: int, proxy: ProxyNorm | None, scaled: bool = True
) -> LayerPlan:
    operation = ActivationSpec(kind) if proxy is None else proxy.spec(kind, channels, scaled)
    return LayerPlan(name, operation)


@dataclass(frozen=True)
class InvertedBlock:
    """Inverted residual block: expand, depthwise, squeeze-excite, project, add.

    Layers are named as in timm, where a block without expansion uses other names.
    """

    inputs: int
    expanded_channels: int
    outputs: int
    kernel: int
    stride: int
    groups: int
    activation: str
    gate: SqueezeExcite | None = None
    drop_path_rate: float = 0.0
    proxy: ProxyNorm | None = None
    expands: bool = True

    @property
    def has_shortcut(self) -> bool:
        return self.stride == 1 and self.inputs == self.outputs

    def layers(self, name: str, factory: LayerFactory) -> Iterator[LayerPlan]:
        fork = Route.FORK if self.has_shortcut else Route.MAIN
        middle, last, project = ("2", "3", "conv_pwl") if self.expands else ("1", "2", "conv_pw")
        if self.expands:
            expand = factory.conv(self.inputs, self.expanded_channels)
            yield LayerPlan(f"{name}/conv_pw", expand, fork)
            yield from norm_before_activation(
                factory, f"{name}/bn1", self.expanded_channels, self.proxy
            )
            yield self._activation(f"{name}/act1")
            fork = Route.MAIN
        depthwise = factory.conv(
            self.expanded_channels, self.expanded_channels, self.kernel, self.stride, self.groups
        )
        depthwise = replace(depthwise, init=factory.init.grouped_conv)  # for a single group too
        yield LayerPlan(f"{name}/conv_dw", depthwise, fork)
        yield from norm_before_activation(
            factory, f"{name}/bn{middle}", self.expanded_channels, self.proxy
        )
        yield from self._activation_and_gate(name, f"act{middle}", factory)
        yield LayerPlan(f"{name}/{project}", factory.conv(self.expanded_channels, self.outputs))
        # No activation follows this norm, so it keeps its scale.
        yield from factory.norm(f"{name}/bn{last}", self.outputs, offset=self.proxy is None)
        if self.has_shortcut:
            if self.drop_path_rate:
                yield LayerPlan(f"{name}/drop_path", DropPathSpec(self.drop_path_rate))
            yield LayerPlan(f"{name}/add", AddSpec(), Route.JOIN)

    def _activation(self, name: str) -> LayerPlan:
        return activation_after_norm(name, self.activation, self.expanded_channels, self.proxy)

    def _activation_and_gate(
        self, name: str, position: str, factory: LayerFactory
    ) -> Iterator[LayerPlan]:
        """The activation and squeeze-excite after the depthwise convolution."""
        gate = self.gate
        if gate is None:
            yield self._activation(f"{name}/{position}")
            return
        reduce = factory.pointwise_conv(self.expanded_channels, gate.reduced_channels)
        expand = factory.pointwise_conv(gate.reduced_channels, self.expanded_channels)
        if self.proxy:
            proxy = self.proxy.spec(self.activation, self.expanded_channels, scaled=False)
            yield LayerPlan(f"{name}/se", ProxySqueezeExciteSpec(proxy, reduce, expand))
            return
        yield self._activation(f"{name}/{position}")
        yield LayerPlan(f"{name}/se/pool", SpatialMeanSpec(), Route.BRANCH)
        yield LayerPlan(f"{name}/se/conv_reduce", reduce, Route.SIDE)
        yield LayerPlan(f"{name}/se/act1", ActivationSpec(gate.activation), Route.SIDE)
        yield LayerPlan(f"{name}/se/conv_expand", expand, Route.SIDE)
        yield LayerPlan(f"{name}/se/gate", ActivationSpec(gate.gate_activation), Route.SIDE)
        yield LayerPlan(f"{name}/se/mul", MultiplySpec(), Route.JOIN)
