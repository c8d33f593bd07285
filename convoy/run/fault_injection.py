"""Injected faults for tests: at an exact update, in one process of a run or in all."""

import os
import re
import signal
from collections.abc import Callable

import torch
from torch import Tensor, nn

from convoy.errors import ConfigError
from convoy.parallel.control import SyncPoint
from convoy.parallel.slice import Slice
from convoy.run.build import TrainingParts

FAULTS_VARIABLE = "CONVOY_TEST_FAULTS"

Action = Callable[[int], object]  # takes the number of finished updates


def fault_injector(parts: TrainingParts) -> Callable[[int], None]:
    """Return a function to call after every update; it injects the configured faults."""
    actions, rank = _actions(parts), parts.context.groups.world.index
    faults = []
    for word in filter(None, os.environ.get(FAULTS_VARIABLE, "").split(";")):
        # The action, the update, and the rank if it is not for all.
        match = re.fullmatch(r"([a-z]+)@([0-9]+)(?::([0-9]+))?", word)
        if match is None or match[1] not in actions:
            known = ", ".join(actions)
            raise ConfigError(
                f"{FAULTS_VARIABLE}: {word!r} is not a fault; write kill@7 or kill@7:1 ({known})"
            )
        if match[3] is None or int(match[3]) == rank:
            faults.append((int(match[2]), actions[match[1]]))

    def inject(update: int) -> None:
        for planned, action in faults:
            if planned == update:
                action(update)

    return inject


def _actions(parts: TrainingParts) -> dict[str, Action]:
    layers, weights = parts.network.slices[0], parts.optimizers[0].flat_params.values
    return {
        "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
        "term": lambda _: os.kill(os.getpid(), signal.SIGTERM),
        "int": lambda _: os.kill(os.getpid(), signal.SIGINT),
        # Flips the lowest bit of the first weight, like a memory error.
        "flip": lambda _: weights.view(torch.int32)[:1].bitwise_xor_(1),
        "desync": lambda update: parts.context.control.all_gather(SyncPoint.SAVE, update),
        "poison": lambda update: inject_nan(layers, update),
    }


def inject_nan(layers: Slice, update: int) -> None:
    """Make the first layer output NaN for one sample of the first local micro-batch."""
    first, position = next(iter(layers.layers.values())), layers.position

    def add_nan(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        del module, inputs
        is_target = (position.update, position.micro) == (update, position.micro_batches[0])
        if not (is_target and layers.training):
            return output
        nan = torch.zeros_like(output)
        nan[0] = torch.nan
        return output + nan

    first.register_forward_hook(add_nan)
