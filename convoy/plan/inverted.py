"""The block of EfficientNet and MobileNet: widen, filter each group of channels, gate, narrow.

┌──────────────── side road, where nothing changes shape ────────────────┐
x ─ conv_pw ─ act ─ conv_dw ─ act ─┬──────────────────── × ─ conv_pwl ─ add
                                   └ mean ─ 1×1 ─ 1×1 ───┘
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from convoy.plan.layers import LayerPlan, Route
from convoy.plan.operations import Activation, Add, Conv, DropPath, Multiply, Squeeze
from convoy.plan.proxy_operations import ProxyActivation, ProxySqueezeExcite


class Own(Enum):
    """The weights that a norm has for each channel."""

    BOTH = "scale and offset"
    ZERO = "scale and offset, and the scale begins at 0"
    SCALE = "scale alone"
    NOTHING = "nothing"


class Bricks(Protocol):
    """What blocks are built of."""

    def conv(self, inputs: int, outputs: int) -> Conv:
        """A convolution of single pixels with a norm behind it."""

    def filter_conv(self, channels: int, kernel: int, stride: int, groups: int) -> Conv:
        """A convolution within groups of channels, with a norm behind it."""

    def gate_conv(self, inputs: int, outputs: int) -> Conv:
        """A convolution of one pixel, with a bias and no norm."""

    def norm(
        self, name: str, channels: int, route: Route = Route.MAIN, own: Own = Own.BOTH
    ) -> Iterator[LayerPlan]:
        """The norm behind a convolution, if there are norms."""


@dataclass(frozen=True)
class Gate:
    """Squeeze-and-excite: a mean of each channel, through a narrow place, scales the channel."""

    inner: int
    activation: str
    outer: str  # sigmoid or hard_sigmoid


@dataclass(frozen=True)
class Proxy:
    """Activations that correct themselves for what the norm before them lost."""

    eps: float
    again: bool


@dataclass(frozen=True)
class Inverted:
    """The figures of one block."""

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
    def has_side_road(self) -> bool:
        return self.stride == 1 and self.inputs == self.outputs


def inverted_block(name: str, block: Inverted, bricks: Bricks) -> Iterator[LayerPlan]:
    """Named as timm does; a block that does not widen has other names for the same places."""
    parts = _Parts(name, block, bricks)
    fork = Route.FORK if block.has_side_road else Route.MAIN
    if block.widens:
        yield from parts.convolved("conv_pw", "bn1", block.inputs, block.hidden, fork)
        yield parts.activated("act1", block.hidden)
        fork = Route.MAIN
    middle, last = ("2", "3") if block.widens else ("1", "2")
    yield from parts.filtered(f"bn{middle}", fork)
    yield from parts.gated(f"act{middle}")
    narrow = "conv_pwl" if block.widens else "conv_pw"
    yield from parts.narrowed(narrow, f"bn{last}")
    if block.has_side_road:
        if block.drop:
            yield LayerPlan(f"{name}/drop_path", DropPath(block.drop))
        yield LayerPlan(f"{name}/add", Add(), Route.JOIN)


class _Parts:
    """The places of one block, in their order."""

    def __init__(self, name: str, block: Inverted, bricks: Bricks) -> None:
        self.name = name
        self.block = block
        self.bricks = bricks

    def convolved(
        self, conv: str, norm: str, inputs: int, outputs: int, route: Route
    ) -> Iterator[LayerPlan]:
        yield LayerPlan(f"{self.name}/{conv}", self.bricks.conv(inputs, outputs), route)
        yield from self.normed(norm, outputs)

    def filtered(self, norm: str, route: Route) -> Iterator[LayerPlan]:
        block = self.block
        conv = self.bricks.filter_conv(block.hidden, block.kernel, block.stride, block.groups)
        yield LayerPlan(f"{self.name}/conv_dw", conv, route)
        yield from self.normed(norm, block.hidden)

    def narrowed(self, conv: str, norm: str) -> Iterator[LayerPlan]:
        """Nothing is activated behind this norm, so it keeps its scale whoever corrects."""
        block, name = self.block, f"{self.name}/{norm}"
        yield LayerPlan(f"{self.name}/{conv}", self.bricks.conv(block.hidden, block.outputs))
        own = Own.SCALE if block.proxy else Own.BOTH
        yield from self.bricks.norm(name, block.outputs, own=own)

    def normed(self, norm: str, channels: int) -> Iterator[LayerPlan]:
        yield from normed(self.bricks, f"{self.name}/{norm}", channels, self.block.proxy)

    def activated(self, name: str, channels: int) -> LayerPlan:
        return activated(f"{self.name}/{name}", self.block.activation, channels, self.block.proxy)

    def gated(self, name: str) -> Iterator[LayerPlan]:
        block, gate = self.block, self.block.gate
        if gate is None:
            yield self.activated(name, block.hidden)
            return
        reduce = self.bricks.gate_conv(block.hidden, gate.inner)
        expand = self.bricks.gate_conv(gate.inner, block.hidden)
        if block.proxy:
            proxy = ProxyActivation(
                block.hidden, block.activation, block.proxy.eps, False, block.proxy.again
            )
            yield LayerPlan(f"{self.name}/se", ProxySqueezeExcite(proxy, reduce, expand))
            return
        yield self.activated(name, block.hidden)
        yield LayerPlan(f"{self.name}/se/pool", Squeeze(), Route.SPUR)
        yield LayerPlan(f"{self.name}/se/conv_reduce", reduce, Route.SIDE)
        yield LayerPlan(f"{self.name}/se/act1", Activation(gate.activation), Route.SIDE)
        yield LayerPlan(f"{self.name}/se/conv_expand", expand, Route.SIDE)
        yield LayerPlan(f"{self.name}/se/gate", Activation(gate.outer), Route.SIDE)
        yield LayerPlan(f"{self.name}/se/mul", Multiply(), Route.JOIN)


def normed(bricks: Bricks, name: str, channels: int, proxy: Proxy | None) -> Iterator[LayerPlan]:
    """A norm whose activation corrects itself leaves scale and offset to it."""
    yield from bricks.norm(name, channels, own=Own.NOTHING if proxy else Own.BOTH)


def activated(
    name: str, kind: str, channels: int, proxy: Proxy | None, scaled: bool = True
) -> LayerPlan:
    """The activation behind a norm."""
    if proxy is None:
        return LayerPlan(name, Activation(kind))
    return LayerPlan(name, ProxyActivation(channels, kind, proxy.eps, scaled, proxy.again))
