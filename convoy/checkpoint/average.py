"""One model out of many checkpoints, one of them in memory at a time.

Sums are kept in float64 and cast back at the end. Whole numbers, and whatever `keep` names, have
no meaningful average and are taken from the newest; so checkpoints come in oldest first.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from convoy.checkpoint.contents import Contents, Tensors, match
from convoy.errors import CheckpointError, ConfigError

Keep = Callable[[str], bool]  # by a tensor's name: take it from the newest, do not average


def keep_none(name: str) -> bool:  # noqa: ARG001 - a Keep
    """Average everything that can be averaged, running statistics too."""
    return False


def mean(checkpoints: Iterable[Contents], keep: Keep = keep_none) -> Tensors:
    """Every checkpoint counts the same."""
    average = _accumulate(checkpoints, lambda total, newest: total.add_(newest), keep)
    return average.result(divisor=average.count)


def exponential(checkpoints: Iterable[Contents], decay: float, keep: Keep = keep_none) -> Tensors:
    """Each checkpoint leaves `decay` of the average before it; the first one starts it."""
    if not 0 <= decay < 1:
        raise ConfigError(f"the decay of an exponential average lies in [0, 1), not at {decay}")

    def blend(total: Tensor, newest: Tensor) -> None:
        total.mul_(decay).add_(newest, alpha=1 - decay)

    return _accumulate(checkpoints, blend, keep).result(divisor=1)


class _RunningAverage:
    """Totals in float64, the newest of what is not averaged, and the shape of every tensor."""

    def __init__(self, first: Tensors, keep: Keep) -> None:
        self.count = 1
        self.templates = {name: tensor.to("meta") for name, tensor in first.items()}
        self.totals = {
            name: tensor.to(torch.float64, copy=True)
            for name, tensor in first.items()
            if tensor.is_floating_point() and not keep(name)
        }
        self.newest: Tensors = {}
        self.take_newest(first)

    def take_newest(self, model: Tensors) -> None:
        """Keep what is not averaged, and nothing else of this checkpoint."""
        self.newest = {name: model[name] for name in model if name not in self.totals}

    def result(self, divisor: int) -> Tensors:
        """The averages in their own types, in the order of the model."""
        return {
            name: (self.totals[name] / divisor).to(template.dtype)
            if name in self.totals
            else self.newest[name].clone()
            for name, template in self.templates.items()
        }


def _model(contents: Contents) -> Tensors:
    return contents.model


@torch.no_grad()
def _accumulate(
    checkpoints: Iterable[Contents], blend: Callable[[Tensor, Tensor], object], keep: Keep
) -> _RunningAverage:
    models = map(_model, checkpoints)  # keeps none alive, unlike a generator
    first = next(models, None)
    if first is None:
        raise CheckpointError("no checkpoint to average")
    average = _RunningAverage(first, keep)
    del first  # here and below: the next one is loaded only when this one is gone
    for model in models:
        match(model, average.templates, of="average")
        for name, total in average.totals.items():
            blend(total, model[name])
        average.take_newest(model)
        average.count += 1
        del model
    return average
