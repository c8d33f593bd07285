"""How many bytes of activations a stage really holds at most, seen while it trains.

An activation is memory that exists because a micro-batch is on its way: images, what comes in and
goes out, what autograd keeps, what is computed again, and the gradients of all that. Every such
tensor has the micro-batch as its first dimension; weights, their gradients, statistics of batch
norm and labels have not. What kernels allocate inside themselves, torch does not tell.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from convoy.config.schema import build_config
from convoy.layers.build import build_layers
from convoy.layers.norms import BatchNorm
from convoy.parallel.channels import StageChannels, connect
from convoy.parallel.executor import Pipeline, PipelineInput, TrainingStage
from convoy.parallel.slice import RecomputedSlice, Slice
from convoy.planning.plan import RunPlan, plan_run
from convoy.planning.stages import stage_boundary
from support.networks import CLASSES

CPU = torch.device("cpu")
Asked = dict[str, Any]


class ActivationTracker(TorchDispatchMode):
    """Sees every tensor that torch makes, and the end of each."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.bytes = 0
        self.peak = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        output = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.dim() > 1 and leaf.shape[0] == self.samples:
                self._take(leaf.untyped_storage())
        return output

    def _take(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive:
            return
        size = storage.nbytes()

        def gone(_: object) -> None:
            self.bytes -= size
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, gone)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


@dataclass(frozen=True)
class Measured:
    """What one stage held at most."""

    activations: int
    stash: int  # sets


@dataclass(frozen=True)
class Compared:
    """One stage of one run: what the plan says and what was seen."""

    stage: int
    planned: int
    seen: int

    @property
    def ratio(self) -> float:
        return self.planned / self.seen


def measure(group: dist.ProcessGroup, asked: Asked) -> Measured:
    """One update of this process's stage."""
    plan = plan_run(build_config(asked))
    place, last = dist.get_rank(group), len(plan.stages) - 1
    module = _stage_module(plan, place)
    samples = plan.batch.micro_batch_size
    (channels,) = connect([stage_boundary(plan.network, plan.stages[place], samples)], group, CPU)
    pipeline = _pipeline(plan, module, channels)
    with ActivationTracker(samples) as tracker:
        pipeline.run(_feed(plan, first=place == 0, last=place == last))
    return Measured(tracker.peak, pipeline.peak_stash_seen)


def measure_alone(asked: Asked) -> Measured:
    """The same for a run of one process."""
    plan = plan_run(build_config(asked))
    module = _stage_module(plan, 0)
    pipeline = _pipeline(plan, module, StageChannels())
    with ActivationTracker(plan.batch.micro_batch_size) as tracker:
        pipeline.run(_feed(plan, first=True, last=True))
    return Measured(tracker.peak, 1)


def _pipeline(plan: RunPlan, module: nn.Module, channels: StageChannels) -> Pipeline:
    def forget() -> None:
        module.zero_grad(set_to_none=True)

    count = plan.batch.gradient_accumulation
    stage = TrainingStage(module, channels, forget, plan.schedule, count)
    return Pipeline([stage], nn.functional.cross_entropy)


def compare(asked: Asked, measured: list[Measured]) -> list[Compared]:
    planned = plan_run(build_config(asked)).memory
    return [
        Compared(stage, memory.activations, seen.activations)
        for stage, (memory, seen) in enumerate(zip(planned, measured, strict=True))
    ]


def _stage_module(plan: RunPlan, place: int) -> nn.Module:
    stage = plan.stages[place]
    layers = plan.network.layers[stage.first : stage.last + 1]
    live = Slice(layers, build_layers(layers, seed=3))
    live.to(memory_format=torch.channels_last)
    if not plan.recompute.enabled:
        return live
    norms = [module for module in live.modules() if isinstance(module, BatchNorm)]
    return RecomputedSlice(live, plan.recompute.checkpoints, lambda: _quiet(norms))


@contextmanager
def _quiet(norms: list[BatchNorm]) -> Iterator[None]:
    for norm in norms:
        norm.records_statistics = False
    try:
        yield
    finally:  # torch leaves by an exception as soon as it has what it needs
        for norm in norms:
            norm.records_statistics = True


def _feed(plan: RunPlan, first: bool, last: bool) -> Iterator[PipelineInput]:
    """Images come one micro-batch at a time, and only to the stage that needs them."""
    samples, size = plan.batch.micro_batch_size, plan.network.image_size
    for seed in range(plan.batch.gradient_accumulation):
        yield (
            _images(samples, size, seed) if first else None,
            torch.arange(samples) % CLASSES if last else None,
        )


def _images(samples: int, size: int, seed: int) -> Tensor:
    """With their pixels together, as the infeed gives them."""
    chance = torch.Generator().manual_seed(seed)
    lying = torch.empty(samples, size, size, 3).normal_(generator=chance)
    return lying.permute(0, 3, 1, 2)
