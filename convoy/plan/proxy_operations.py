"""Activations that correct themselves for what the norm before them lost."""

from collections.abc import Iterator
from dataclasses import dataclass

from convoy.plan.operations import Conv, Operation
from convoy.plan.steps import Saves, Shape, Step, moving, scaling


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

    def work(self, given: Shape) -> int:
        """What is computed again, and a product that is about to be summed."""
        return (3 if self.scaled else 1) * given.elements

    def steps(self, given: Shape) -> tuple[Step, ...]:
        return super().steps(given) if self.again else (*self.chain(given, self.scaled),)

    def chain(self, given: Shape, scaled: bool) -> Iterator[Step]:
        """γ·x, + β, the activation, − μ, ÷ σ."""
        yield scaling(given)
        yield moving(given)
        saves = Saves.MADE if self.kind == "relu" else Saves.GIVEN
        yield Step(given, saves, saves_first=saves is Saves.GIVEN)
        yield moving(given, work=given.elements)
        if scaled:
            yield scaling(given)


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

    def work(self, given: Shape) -> int:
        return 3 * given.elements

    def steps(self, given: Shape) -> tuple[Step, ...]:
        """All but the convolutions of one pixel; the gate scales as the deviation does."""
        if self.proxy.again:
            return super().steps(given)
        return (*self.proxy.chain(given, scaled=True),)
