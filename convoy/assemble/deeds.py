"""What a test may do to a process of a run, beside signals."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from convoy.faults import Deed
from convoy.parallel.council import Council, Matter
from convoy.parallel.slice import Slice


def deeds_on(
    layers: Slice, weights: Tensor, council: Council, done: Callable[[], int]
) -> dict[str, Deed]:
    """By the names that tests use; `done` tells how many updates there were."""
    return {
        "flip": lambda: flip_a_bit(weights),
        "stray": lambda: council.meet(Matter.SAVE, done()),
        "poison": lambda: poison(layers, done()),
    }


def flip_a_bit(values: Tensor) -> None:
    """The lowest one of the first number: an error of memory in its smallest form."""
    values.view(torch.int32)[0] ^= 1


def poison(layers: Slice, update: int) -> None:
    """The first layer makes a NaN of the first sample in our first micro-batch of this update."""
    first, moment = next(iter(layers.layers.values())), layers.moment

    def spoil(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
        del module, given
        if (moment.update, moment.micro) != (update, moment.micros[0]) or not layers.training:
            return made
        spoiled = torch.zeros_like(made)
        spoiled[0] = torch.nan
        return made + spoiled

    first.register_forward_hook(spoil)
