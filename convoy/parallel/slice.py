"""A slice of the network: consecutive named layers, run over a bundle of tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from convoy.batch import Bundle
from convoy.models.layers import LayerPlan, Route, taken
from convoy.numerics.precision import Arithmetic, makes_new_numbers
from convoy.plan.memory import segment_starts
from convoy.rng import StepPosition

Call = Callable[..., Tensor]
T = TypeVar("T")


class Slice(nn.Module):
    """The layers of one stage: a bundle in, a bundle out; routes are in `models/layers.py`."""

    def __init__(
        self,
        layers: Sequence[LayerPlan],
        modules: Mapping[str, nn.Module],
        position: StepPosition | None = None,
    ) -> None:
        """`position` is what modules that draw random numbers look at."""
        super().__init__()
        self.position = position or StepPosition()
        self.layers = nn.ModuleDict({layer.name: modules[layer.name] for layer in layers})
        self.routes = [layer.route for layer in layers]
        self.arithmetic = Arithmetic()
        self.takes_images = False
        self._rounds = [makes_new_numbers(layer.operation) for layer in layers]
        self.spare_what_comes_into(0)

    def forward(self, *bundle: Tensor) -> Bundle:
        if self.training:
            self.position.advance()
        return self.run(range(len(self.routes)), *bundle)

    def compute_in(self, arithmetic: Arithmetic, takes_images: bool) -> None:
        """From now on; images that come in are rounded too, other stages hand on such numbers."""
        self.arithmetic = arithmetic
        self.takes_images = takes_images

    def run(self, part: range, *bundle: Tensor) -> Bundle:
        """Some of the layers, one after the other."""
        layers = list(self.layers.values())[part.start : part.stop]
        return self.through(part, layers, *bundle)

    def through(self, part: range, calls: Sequence[Call], *bundle: Tensor) -> Bundle:
        """The same, where each layer of the part, by its position in it, is run by a call."""
        if not self.arithmetic.rounds:  # fp32: nothing around any layer
            for index, call in zip(part, calls, strict=True):
                bundle = carry(call, self.routes[index], bundle)
            return bundle
        return self._through_rounded(part, calls, *bundle)

    def _through_rounded(self, part: range, calls: Sequence[Call], *bundle: Tensor) -> Bundle:
        arithmetic = self.arithmetic
        first, *rest = arithmetic.entered(bundle)
        if part.start == 0 and self.takes_images:
            first = arithmetic.after(first)
        bundle = (first, *rest)
        with arithmetic.context(first.device):
            for index, call in zip(part, calls, strict=True):
                bundle = carry(self._rounded(index, call), self.routes[index], bundle)
        return arithmetic.left(bundle)

    def _rounded(self, index: int, call: Call) -> Call:
        if not self._rounds[index]:
            return call
        after = self.arithmetic.after

        def called(*given: Tensor) -> Tensor:
            return after(call(*given))

        return called

    def spare_what_comes_into(self, first: int) -> None:
        """From this layer on nothing works in place on what the layer before it handed over.

        What comes into a slice belongs to the sender; what comes into a recomputed segment is
        needed once more.
        """
        names = list(self.layers)
        # A layer takes at most two tensors away, so no bundle that fits these layers is longer.
        foreign = (True,) * (len(names) + 2)
        for name, route in list(zip(names, self.routes, strict=True))[first:]:
            layer = self.layers[name]
            if isinstance(layer, nn.ReLU) and taken(route, foreign):
                self.layers[name] = nn.ReLU()
            foreign = carry(_ours, route, foreign)

    def named_tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers, named without regard to stages: `layer1.0.conv1.weight`."""
        return {_plain(name): tensor for name, tensor in self.state_dict(keep_vars=True).items()}

    def named_weights(self) -> dict[str, nn.Parameter]:
        """The parameters alone, under the same names."""
        return {_plain(name): weight for name, weight in self.named_parameters()}


def carry(layer: Callable[..., T], route: Route, bundle: tuple[T, ...]) -> tuple[T, ...]:
    """The bundle behind a layer, which takes its part of it by the route."""
    match route:
        case Route.MAIN:
            return (layer(bundle[0]), *bundle[1:])
        case Route.FORK:
            return (layer(bundle[0]), *bundle)
        case Route.SPUR:
            return (bundle[0], layer(bundle[0]), *bundle[1:])
        case Route.SIDE:
            return (bundle[0], layer(bundle[1]), *bundle[2:])
        case Route.JOIN:
            return (layer(bundle[0], bundle[1]), *bundle[2:])


def _ours(*given: bool) -> bool:
    """What a layer makes is foreign to nobody."""
    del given
    return False


def _plain(name: str) -> str:
    return name.removeprefix("layers.").replace("/", ".")


# Inside, layers that remember what they saw do not remember it a second time.
Quiet = Callable[[], AbstractContextManager[None]]
# How some layers of the slice are run: as they are, or compiled.
Run = Callable[..., Bundle]


class Recomputing(nn.Module):
    """The face of a slice. `kept` names the layers whose result is kept; it may name others."""

    def __init__(
        self, layers: Slice, kept: Sequence[str], quiet: Quiet, run: Run | None = None
    ) -> None:
        super().__init__()
        self.slice = layers
        self.run = run or layers.run
        self.quiet = quiet
        names = list(layers.layers)
        starts = segment_starts(names, kept)
        for start in starts:
            layers.spare_what_comes_into(start)
        self.segments = [range(*borders) for borders in pairwise([*starts, len(names)])]

    def forward(self, *bundle: Tensor) -> Bundle:
        if not (self.training and torch.is_grad_enabled()):
            return self.run(range(len(self.slice.routes)), *bundle)
        self.slice.position.advance()
        for segment in self.segments:
            bundle = self._run(segment, bundle)
        return bundle

    def _run(self, segment: range, bundle: Bundle) -> Bundle:
        """Chance is a function of the moment here, so torch's generators need not be put back."""
        number = self.slice.position.number
        made: Bundle = checkpoint(
            self.run,
            segment,
            *bundle,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), self._again(number)),
        )
        return made

    @contextmanager
    def _again(self, number: int) -> Iterator[None]:
        with self.quiet(), self.slice.position.replay(number):
            yield
