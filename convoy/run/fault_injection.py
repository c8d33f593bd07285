"""Faults on purpose, for tests: at an exact update, in one process of a run or in all."""

import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from convoy.errors import ConfigError
from convoy.parallel.control import SyncPoint
from convoy.parallel.slice import Slice
from convoy.run.build import TrainingParts

VARIABLE = "CONVOY_TEST_FAULTS"

_SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}

Action = Callable[[int], object]  # takes the number of updates that are done


@dataclass(frozen=True)
class _Fault:
    action: str
    update: int
    rank: int | None  # None: everywhere


def planned_faults(parts: TrainingParts) -> Callable[[int], None]:
    """Called after every update: carries out the faults that the variable names; usually none."""
    words = [word for word in os.environ.get(VARIABLE, "").split(";") if word]
    actions = _actions(parts)
    rank = parts.context.groups.world.index
    faults = [
        fault for fault in (_fault(word, actions) for word in words) if fault.rank in (None, rank)
    ]

    def inject(update: int) -> None:
        for fault in faults:
            if fault.update == update:
                actions[fault.action](update)

    return inject


def _actions(parts: TrainingParts) -> dict[str, Action]:
    """By the names that tests use."""
    layers, weights = parts.network.slices[0], parts.optimizers[0].flat.values
    return {
        **{name: partial(_signal, number) for name, number in _SIGNALS.items()},
        "flip": lambda _: flip_a_bit(weights),
        "stray": lambda update: parts.context.control.all_gather(SyncPoint.SAVE, update),
        "poison": lambda update: poison(layers, update),
    }


def _signal(number: int, update: int) -> None:
    del update
    os.kill(os.getpid(), number)


def _fault(word: str, known: Mapping[str, Action]) -> _Fault:
    match = re.fullmatch(r"([a-z]+)@([0-9]+)(?::([0-9]+))?", word)
    if match is None or match[1] not in known:
        names = ", ".join(known)
        raise ConfigError(f"{VARIABLE}: {word!r} is no fault; write kill@7 or kill@7:1 ({names})")
    return _Fault(match[1], int(match[2]), int(match[3]) if match[3] else None)


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
