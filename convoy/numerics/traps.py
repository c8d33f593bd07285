"""Traps: find the layer, micro-batch and samples with the first non-finite value.

They check the output of every layer, the gradient of that output, and the weight gradients of each
micro-batch. They change nothing and raise nothing: each process records its first non-finite value,
and the processes compare their records.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from enum import IntEnum
from functools import partial

import torch
from torch import Tensor, nn

from convoy.numerics.gradients import GradientHook, GradientTree
from convoy.numerics.precision import FLOAT32, FloatFormat
from convoy.rng import StepPosition

MAX_LISTED_SAMPLES = 8  # their total number is reported as well


class Phase(IntEnum):
    """The phase of a micro-batch that a value belongs to, in execution order."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHTS = 2


@dataclass(frozen=True, order=True)
class NonFiniteRecord:
    """A non-finite value. The fields before `micro` order records by time."""

    local_micro: int  # index within the replica; replicas run in parallel
    phase: Phase
    layer_order: int  # position of the layer in the pass
    micro: int  # index over all replicas
    layer: int
    num_bad_samples: int = 0  # 0 if it concerns the whole micro-batch
    bad_samples: tuple[int, ...] = ()

    def as_tensor(self) -> Tensor:
        """Encode with a fixed length, for an all-gather."""
        *numbers, samples = astuple(self)
        return torch.tensor([*numbers, *samples, *[-1] * (MAX_LISTED_SAMPLES - len(samples))])

    @classmethod
    def from_tensor(cls, numbers: Tensor) -> "NonFiniteRecord | None":
        local_micro, phase, layer_order, micro, layer, num_bad_samples, *rows = numbers.tolist()
        if local_micro < 0:
            return None
        samples = tuple(row for row in rows if row >= 0)
        return cls(local_micro, Phase(phase), layer_order, micro, layer, num_bad_samples, samples)


NO_RECORD = torch.full((6 + MAX_LISTED_SAMPLES,), -1)


@dataclass(frozen=True)
class WatchedLayer:
    """A layer, its index in the network, and the step position of its stage."""

    layer: int
    module: nn.Module
    position: StepPosition
    number_format: FloatFormat = FLOAT32  # of its output, in which a value may overflow


class Traps:
    """The traps of one process. `names` are those of all layers of the network."""

    def __init__(
        self, names: Sequence[str], layers: Sequence[WatchedLayer], trees: Sequence[GradientTree]
    ) -> None:
        self.names = names
        self.layers = layers
        self.trees = trees
        self.first: NonFiniteRecord | None = None
        self._layer_by_weight = {
            weight: watched.layer for watched in layers for weight in watched.module.parameters()
        }

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Arm the traps for the micro-batches of one update."""
        self.first = None
        with ExitStack() as stack:
            for watched in self.layers:
                check = partial(self._check_output, watched)
                handle = watched.module.register_forward_hook(check)
                stack.callback(handle.remove)
            for tree in self.trees:
                stack.callback(setattr, tree, "gradient_hook", tree.gradient_hook)
                tree.gradient_hook = partial(self._check_gradients, tree, tree.gradient_hook)
            yield

    def rewind_to(self, update: int) -> None:
        """Prepare to run the micro-batches of this update, counted from 0, again."""
        for watched in self.layers:
            watched.position.resume_after(update)

    def _check_output(
        self, watched: WatchedLayer, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> None:
        del module, inputs
        position, layer = watched.position, watched.layer
        local_micro, micro = position.current % len(position.micro_batches), position.micro
        rounded = watched.number_format.round_nearest(output.detach())
        record = NonFiniteRecord(local_micro, Phase.FORWARD, layer, micro, layer)
        self._check_values(rounded, record)
        if output.requires_grad:
            back = NonFiniteRecord(local_micro, Phase.BACKWARD, -layer, micro, layer)
            output.register_hook(partial(self._check_values, record=back))  # type: ignore[no-untyped-call]

    def _check_gradients(
        self, tree: GradientTree, previous_hook: GradientHook | None, gradients: Sequence[Tensor]
    ) -> None:
        """Check the weights whose gradient has been computed but not accumulated yet."""
        if previous_hook is not None:
            previous_hook(gradients)
        micro, number_format = tree.first_leaf + tree.leaves, tree.gradient_format
        for weight in tree.flat.weights.values():
            if weight.grad is not None and not all_finite(number_format.round_nearest(weight.grad)):
                layer = self._layer_by_weight[weight]
                record = NonFiniteRecord(tree.leaves, Phase.WEIGHTS, -layer, micro, layer)
                self._record_earliest(record)

    @torch.no_grad()
    def _check_values(self, values: Tensor, record: NonFiniteRecord) -> None:
        if all_finite(values):
            return
        bad = (~torch.isfinite(values)).flatten(1).any(1).nonzero().flatten().tolist()
        self._record_earliest(
            replace(record, num_bad_samples=len(bad), bad_samples=tuple(bad[:MAX_LISTED_SAMPLES]))
        )

    def _record_earliest(self, record: NonFiniteRecord) -> None:
        if self.first is None or record < self.first:
            self.first = record


def all_finite(values: Tensor) -> bool:
    """Whether all values are finite. A NaN shows up in both the minimum and the maximum."""
    if not values.numel():
        return True
    low, high = torch.aminmax(values.detach())
    return bool(torch.isfinite(low) & torch.isfinite(high))
