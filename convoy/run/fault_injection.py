"""Faults on purpose, for tests: at an exact update, in one process of a run or in all."""

import os
import re
import signal
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from convoy.errors import ConfigError
from convoy.parallel.control import SyncPoint
from convoy.parallel.slice import Slice
from convoy.run.build import TrainingParts

VARIABLE = "CONVOY_TEST_FAULTS"

Action = Callable[[int], object]  # takes the number of updates that are done


def planned_faults(parts: TrainingParts) -> Callable[[int], None]:
    """Called after every update: carries out the faults that the variable names; usually none."""
    actions, rank = _actions(parts), parts.context.groups.world.index
    words = [word for word in os.environ.get(VARIABLE, "").split(";") if word]
    faults = [
        (int(update), actions[name])
        for name, update, only in (_parsed(word, actions) for word in words)
        if only is None or int(only) == rank
    ]

    def inject(update: int) -> None:
        for planned, action in faults:
            if planned == update:
                action(update)

    return inject


def _actions(parts: TrainingParts) -> dict[str, Action]:
    layers, weights = parts.network.slices[0], parts.optimizers[0].flat.values
    return {
        "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
        "term": lambda _: os.kill(os.getpid(), signal.SIGTERM),
        "int": lambda _: os.kill(os.getpid(), signal.SIGINT),
        "flip": lambda _: flip_a_bit(weights),
        "stray": lambda update: parts.context.control.all_gather(SyncPoint.SAVE, update),
        "poison": lambda update: poison(layers, update),
    }


def _parsed(word: str, known: Mapping[str, Action]) -> tuple[str, str, str | None]:
    """The action, the update, and the rank if it is not for all."""
    match = re.fullmatch(r"([a-z]+)@([0-9]+)(?::([0-9]+))?", word)
    if match is None or match[1] not in known:
        names = ", ".join(known)
        raise ConfigError(f"{VARIABLE}: {word!r} is no fault; write kill@7 or kill@7:1 ({names})")
    return match[1], match[2], match[3]


def flip_a_bit(values: Tensor) -> None:
    """The lowest one of the first number: an error of memory in its smallest form."""
    values.view(torch.int32)[0] ^= 1


def poison(layers: Slice, update: int) -> None:
    """The first layer makes a NaN of the first sample in our first micro-batch of this update."""
    first, position = next(iter(layers.layers.values())), layers.position

    def spoil(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
        del module, given
        if (position.update, position.micro) != (update, position.micros[0]) or not layers.training:
            return made
        spoiled = torch.zeros_like(made)
        spoiled[0] = torch.nan
        return made + spoiled

    first.register_forward_hook(spoil)
