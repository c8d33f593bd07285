"""A backward pass in two halves: first what the stage before waits for, later the weights.

The weights of convolutions and linear layers can wait, their gradients are half of the work. Those
of norms come with the gradient of the norm's input, from the same kernel, so they are not split
off. torch's own split takes all weights apart: torch 2.13 then crashes in group norm, computes
batch norm's backward twice, and fails where a stage sends on what one of its layers has kept.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from convoy.parallel.slice import Bundle


@dataclass(frozen=True)
class _Product:
    """One layer's pass whose weights can wait."""

    weights: list[nn.Parameter]
    edge: GradientEdge  # where the gradient of what it made enters the graph
    gradient: list[Tensor]  # empty until the first half has passed here


@dataclass
class Tape:
    """What one micro-batch leaves for the second half."""

    products: list[_Product] = field(default_factory=list)
    prompt: dict[nn.Parameter, Tensor] = field(default_factory=dict)  # known after the first half


class Halves:
    """Splits the backward passes of some layers."""

    def __init__(self, layers: nn.Module) -> None:
        own = [(one, weights) for one in layers.modules() if (weights := _weights(one))]
        self._products = [pair for pair in own if isinstance(pair[0], nn.Conv2d | nn.Linear)]
        waiting = {weight for _, weights in self._products for weight in weights}
        self._prompt = [one for _, weights in own for one in weights if one not in waiting]

    @contextmanager
    def noting(self, tape: Tape) -> Iterator[None]:
        """The forward pass of one micro-batch."""
        handles = [_note(module, weights, tape) for module, weights in self._products]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def first(
        self,
        made: Sequence[Tensor],
        gradients: Sequence[Tensor] | None,
        inputs: Sequence[Tensor],
        tape: Tape,
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs."""
        found = torch.autograd.grad(
            made, [*inputs, *self._prompt], gradients, retain_graph=True, allow_unused=True
        )
        for weight, gradient in zip(self._prompt, found[len(inputs) :], strict=True):
            tape.prompt[weight] = gradient
        return found[: len(inputs)]

    @staticmethod
    def second(tape: Tape) -> None:
        """The gradients of all weights, into the weights."""
        for weight, gradient in tape.prompt.items():
            weight.grad = gradient
        for product in tape.products:
            found = torch.autograd.grad([product.edge], product.weights, product.gradient)
            for weight, gradient in zip(product.weights, found, strict=True):
                weight.grad = gradient


def _weights(module: nn.Module) -> list[nn.Parameter]:
    return [one for one in module.parameters(recurse=False) if one.requires_grad]


def _note(
    module: nn.Module, weights: list[nn.Parameter], tape: Tape
) -> torch.utils.hooks.RemovableHandle:
    def note(module: nn.Module, given: Bundle, made: Tensor) -> None:
        del module, given
        gradient: list[Tensor] = []
        # The graph holds this hook, so the hook must hold nothing that holds the graph.
        made.register_hook(gradient.append)  # type: ignore[no-untyped-call]  # untyped in torch
        tape.products.append(_Product(weights, get_gradient_edge(made), gradient))

    return module.register_forward_hook(note)
