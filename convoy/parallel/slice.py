"""A slice of the network: consecutive named layers that process a bundle of tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from convoy.batch import Bundle
from convoy.models.layers import LayerPlan, Route, bundle_after, layer_input
from convoy.numerics.precision import Arithmetic, needs_rounding
from convoy.planning.memory import segment_starts
from convoy.rng import StepPosition

LayerFunction = Callable[..., Tensor]
T = TypeVar("T")


class Slice(nn.Module):
    """The layers of one stage, from bundle to bundle; see `models/layers.py` for routes."""

    def __init__(
        self,
        layers: Sequence[LayerPlan],
        modules: Mapping[str, nn.Module],
        position: StepPosition | None = None,
    ) -> None:
        """`position` is read by modules that draw random numbers."""
        super().__init__()
        self.position = position or StepPosition()
        self.layers = nn.ModuleDict({layer.name: modules[layer.name] for layer in layers})
        self.routes = [layer.route for layer in layers]
        self.arithmetic = Arithmetic()
        self.rounds_input = False
        self._needs_rounding = [needs_rounding(layer.operation) for layer in layers]
        self.disable_inplace_from(0)

    def forward(self, *bundle: Tensor) -> Bundle:
        if self.training:
            self.position.advance()
        return self.run(range(len(self.routes)), *bundle)

    def set_arithmetic(self, arithmetic: Arithmetic, rounds_input: bool) -> None:
        """Set the arithmetic. Images need `rounds_input`; other stages send rounded values."""
        self.arithmetic = arithmetic
        self.rounds_input = rounds_input

    def run(self, layer_range: range, *bundle: Tensor) -> Bundle:
        layers = list(self.layers.values())[layer_range.start : layer_range.stop]
        return self.run_calls(layer_range, layers, *bundle)

    def run_calls(
        self, layer_range: range, functions: Sequence[LayerFunction], *bundle: Tensor
    ) -> Bundle:
        """Run some of the layers; each function replaces the corresponding layer."""
        if not self.arithmetic.rounds:  # fp32: layers run without wrappers
            for index, function in zip(layer_range, functions, strict=True):
                bundle = apply_route(function, self.routes[index], bundle)
            return bundle
        return self._run_rounded(layer_range, functions, *bundle)

    def _run_rounded(
        self, layer_range: range, functions: Sequence[LayerFunction], *bundle: Tensor
    ) -> Bundle:
        arithmetic = self.arithmetic
        first, *rest = arithmetic.cast_inputs(bundle)
        if layer_range.start == 0 and self.rounds_input:
            first = arithmetic.round(first)
        bundle = (first, *rest)
        with arithmetic.context(first.device):
            for index, function in zip(layer_range, functions, strict=True):
                bundle = apply_route(
                    self._with_rounding(index, function), self.routes[index], bundle
                )
        return arithmetic.cast_outputs(bundle)

    def _with_rounding(self, index: int, function: LayerFunction) -> LayerFunction:
        if not self._needs_rounding[index]:
            return function
        round_output = self.arithmetic.round

        def rounded_function(*inputs: Tensor) -> Tensor:
            return round_output(function(*inputs))

        return rounded_function

    def disable_inplace_from(self, first: int) -> None:
        """Replace in-place layers that would modify the input of this layer.

        The input of a slice belongs to its sender; the input of a recomputed segment is needed
        again.
        """
        names = list(self.layers)
        # Which tensors of the bundle the slice must not modify. A layer consumes at most two
        # tensors, so no bundle for these layers is longer.
        protected = (True,) * (len(names) + 2)
        for name, route in list(zip(names, self.routes, strict=True))[first:]:
            layer = self.layers[name]
            if isinstance(layer, nn.ReLU) and layer_input(route, protected):
                self.layers[name] = nn.ReLU()
            protected = bundle_after(route, protected, False)

    def named_tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers under names independent of stages: `layer1.0.conv1.weight`."""
        return {
            _parameter_name(name): tensor
            for name, tensor in self.state_dict(keep_vars=True).items()
        }

    def named_weights(self) -> dict[str, nn.Parameter]:
        """The parameters only, under the same names."""
        return {_parameter_name(name): weight for name, weight in self.named_parameters()}


def apply_route(layer: Callable[..., T], route: Route, bundle: tuple[T, ...]) -> tuple[T, ...]:
    """Apply a layer to the tensors that its route selects, and return the new bundle."""
    inputs = bundle[:2] if route is Route.JOIN else (layer_input(route, bundle),)
    return bundle_after(route, bundle, layer(*inputs))


def _parameter_name(name: str) -> str:
    return name.removeprefix("layers.").replace("/", ".")


# Inside this context, layers do not update running statistics a second time.
PauseStatistics = Callable[[], AbstractContextManager[None]]
# Runs some layers of the slice, eagerly or compiled.
RunLayers = Callable[..., Bundle]


class RecomputedSlice(nn.Module):
    """Recomputes a slice in backward, except for the outputs of `checkpoint_layers`.

    Names of layers in other slices are ignored.
    """

    def __init__(
        self,
        inner: Slice,
        checkpoint_layers: Sequence[str],
        pause_statistics: PauseStatistics,
        run: RunLayers | None = None,
    ) -> None:
        super().__init__()
        self.slice = inner
        self.run = run or inner.run
        self.pause_statistics = pause_statistics
        names = list(inner.layers)
        starts = segment_starts(names, checkpoint_layers)
        for start in starts:
            inner.disable_inplace_from(start)
        self.segments = [range(*bounds) for bounds in pairwise([*starts, len(names)])]

    def forward(self, *bundle: Tensor) -> Bundle:
        if not (self.training and torch.is_grad_enabled()):
            return self.run(range(len(self.slice.routes)), *bundle)
        self.slice.position.advance()
        for segment in self.segments:
            bundle = self._run(segment, bundle)
        return bundle

    def _run(self, segment: range, bundle: Bundle) -> Bundle:
        """Random numbers depend only on the step position, so RNG states need not be restored."""
        number = self.slice.position.current
        outputs: Bundle = checkpoint(
            self.run,
            segment,
            *bundle,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), self._recompute_context(number)),
        )
        return outputs

    @contextmanager
    def _recompute_context(self, number: int) -> Iterator[None]:
        with self.pause_statistics(), self.slice.position.replay(number):
            yield
