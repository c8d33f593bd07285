"""The first weights of a layer, drawn by the rule that its plan names."""

import torch
from torch import Tensor, nn

from convoy.plan.first_weights import Draw, Fan, draw_of
from convoy.plan.operations import Conv, Linear


def draw_weights(
    operation: Conv | Linear, module: nn.Conv2d | nn.Linear, generator: torch.Generator
) -> None:
    """Weights, then the bias, from one generator."""
    drawn = draw_of(operation.first, _fan(operation))
    _draw(module.weight.data, drawn, generator)
    if module.bias is None:
        return
    if drawn.bias:
        module.bias.data.uniform_(-drawn.bias, drawn.bias, generator=generator)
    else:
        nn.init.zeros_(module.bias)


def _fan(operation: Conv | Linear) -> Fan:
    if isinstance(operation, Linear):
        return Fan(operation.inputs, operation.outputs)
    return Fan(operation.inputs, operation.outputs, operation.kernel**2, operation.groups)


def _draw(weight: Tensor, drawn: Draw, generator: torch.Generator) -> None:
    spread = drawn.spread
    match drawn.shape:
        case "normal":
            weight.normal_(0, spread, generator=generator)
        case "uniform":
            weight.uniform_(-spread, spread, generator=generator)
        case "cut":
            nn.init.trunc_normal_(weight, 0, spread, -2 * spread, 2 * spread, generator=generator)
        case _:
            raise AssertionError(f"no such shape: {drawn.shape}")
