"""A few weights and gradients of several shapes, for tests of optimizers."""

import torch
from torch import Tensor, nn

from convoy.optim.optimizer import Optimizer

SHAPES = {"conv.weight": (4, 3, 3, 3), "bn.weight": (4,), "fc.weight": (5, 4), "fc.bias": (5,)}
RATES = [0.1 * (1 - update / 25) for update in range(20)]


def noise(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weights(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    named = enumerate(SHAPES.items())
    return {name: nn.Parameter(noise(shape, seed, dtype)) for seed, (name, shape) in named}


def gradients(update: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = enumerate(SHAPES.values(), start=100 * (update + 1))
    return [noise(shape, seed, dtype) for seed, shape in shapes]


def flattened(optimizer: Optimizer, update: int, scale: float = 1.0) -> Tensor:
    """The gradients of an update in the optimizer's layout, of a loss times `scale`."""
    flat = optimizer.flat_params
    values = gradients(update, flat.values.dtype)
    return flat.flatten(dict(zip(flat.weights, values, strict=True))).mul_(scale)
