"""A backward pass in two parts: gradients of the inputs first, those of the weights later.

Deferred are the weights of convolutions and linear layers, whose gradients are half of the work.
Those of norms come out of the same kernel as the gradient of the norm's input, so they are not
split off. torch's own split defers all weights: torch 2.13 then crashes in group norm, computes
batch norm's backward twice, and fails where a stage sends what one of its layers has saved.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from convoy.batch import Bundle


@dataclass(frozen=True)
class _Deferred:
    """One pass through a layer whose weight gradients are computed later."""

    weights: list[nn.Parameter]
    edge: GradientEdge  # where the gradient of the layer's output enters the graph
    gradient: list[Tensor]  # of the output; empty until the first part has come through


@dataclass
class SplitState:
    """What one micro-batch keeps for the second part of its backward pass."""

    deferred: list[_Deferred] = field(default_factory=list)
    immediate: dict[nn.Parameter, Tensor] = field(default_factory=dict)  # known after the first


class SplitBackward:
    """Splits the backward passes of a module."""

    def __init__(self, module: nn.Module) -> None:
        weights = [(layer, own) for layer in module.modules() if (own := _weights(layer))]
        self._deferred = [pair for pair in weights if isinstance(pair[0], nn.Conv2d | nn.Linear)]
        later = {weight for _, own in self._deferred for weight in own}
        self._immediate = [weight for _, own in weights for weight in own if weight not in later]

    @contextmanager
    def record(self, state: SplitState) -> Iterator[None]:
        """Around the forward pass of one micro-batch."""
        handles = [_record(layer, weights, state) for layer, weights in self._deferred]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def backward_input(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor] | None,
        inputs: Sequence[Tensor],
        state: SplitState,
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs."""
        found = torch.autograd.grad(
            outputs, [*inputs, *self._immediate], gradients, retain_graph=True, allow_unused=True
        )
        for weight, gradient in zip(self._immediate, found[len(inputs) :], strict=True):
            state.immediate[weight] = gradient
        return found[: len(inputs)]

    @staticmethod
    def backward_weight(state: SplitState) -> None:
        """The gradients of all weights, into their `grad`."""
        for weight, gradient in state.immediate.items():
            weight.grad = gradient
        for layer in state.deferred:
            found = torch.autograd.grad([layer.edge], layer.weights, layer.gradient)
            for weight, gradient in zip(layer.weights, found, strict=True):
                weight.grad = gradient


def _weights(layer: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in layer.parameters(recurse=False) if weight.requires_grad]


def _record(
    layer: nn.Module, weights: list[nn.Parameter], state: SplitState
) -> torch.utils.hooks.RemovableHandle:
    def record(layer: nn.Module, inputs: Bundle, output: Tensor) -> None:
        del layer, inputs
        gradient: list[Tensor] = []
        # The graph holds this hook, so the hook must hold nothing that holds the graph.
        output.register_hook(gradient.append)  # type: ignore[no-untyped-call]  # untyped in torch
        state.deferred.append(_Deferred(weights, get_gradient_edge(output), gradient))

    return layer.register_forward_hook(record)
