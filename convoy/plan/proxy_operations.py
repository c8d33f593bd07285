"""Activations that correct themselves for what the norm before them lost."""

from dataclasses import dataclass

from convoy.plan.operations import Conv, Operation, Shape


@dataclass(frozen=True)
class ProxyActivation(Operation):
    """An activation made standard for a normal input: four numbers a channel tell which."""

    channels: int
    kind: str
    eps: float
    scaled: bool  # whether its result is divided by the deviation
    again: bool  # compute it again in the backward pass

    @property
    def parameters(self) -> int:
        return 4 * self.channels

    def macs(self, given: Shape) -> int:
        return 2 * given.elements

    def aside(self, made: Shape) -> int:
        return 0 if self.again else 2 * made.elements


@dataclass(frozen=True)
class ProxySqueezeExcite(Operation):
    """A proxy activation and squeeze-and-excite in one, for the deviation is divided out last."""

    proxy: ProxyActivation
    reduce: Conv
    expand: Conv

    @property
    def parameters(self) -> int:
        return self.proxy.parameters + self.reduce.parameters + self.expand.parameters

    def macs(self, given: Shape) -> int:
        one = Shape(given.channels, 1)
        inner = self.reduce.macs(one) + self.expand.macs(self.reduce.shape(one))
        return self.proxy.macs(given) + inner + 2 * given.elements

    def aside(self, made: Shape) -> int:
        return self.proxy.aside(made) + 2 * made.elements
