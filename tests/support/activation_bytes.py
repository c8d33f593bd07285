"""Measures the peak activation bytes of a stage while it trains.

Activations are images, inputs and outputs of stages, tensors saved by autograd, recomputed
tensors, and the gradients of all of these. The first dimension of every such tensor is the
micro-batch; weights, their gradients, batch norm statistics and labels have other shapes. Memory
that kernels allocate internally is not visible to torch.
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
from convoy.parallel.executor import (
    PipelineInput,
    TrainingPipeline,
    TrainingStage,
    classification_pipeline,
)
from convoy.parallel.slice import RecomputedSlice, Slice
from convoy.planning.plan import RunPlan, plan_run
from convoy.planning.stages import stage_boundary
from support.networks import CLASSES

CPU = torch.device("cpu")
Options = dict[str, Any]


class ActivationTracker(TorchDispatchMode):
    """Counts the bytes of all tensors that exist at the same time."""

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
                self._track(leaf.untyped_storage())
        return output

    def _track(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive:
            return
        size = storage.nbytes()

        def release(_: object) -> None:
            self.bytes -= size
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, release)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


@dataclass(frozen=True)
class Measured:
    """Peak memory of one stage."""

    activations: int  # bytes
    stash: int  # activation sets


@dataclass(frozen=True)
class Compared:
    """Planned and measured activation bytes of one stage."""

    stage: int
    planned: int
    measured: int

    @property
    def ratio(self) -> float:
        return self.planned / self.measured


def measure(group: dist.ProcessGroup, options: Options) -> Measured:
    """Run one update of the stage of this process."""
    plan = plan_run(build_config(options))
    rank, last = dist.get_rank(group), len(plan.stages) - 1
    module = _stage_module(plan, rank)
    samples = plan.batch.micro_batch_size
    (channels,) = connect([stage_boundary(plan.network, plan.stages[rank], samples)], group, CPU)
    pipeline = _pipeline(plan, module, channels)
    with ActivationTracker(samples) as tracker:
        pipeline.run(_feed(plan, first=rank == 0, last=rank == last))
    return Measured(tracker.peak, pipeline.peak_stash_seen)


def measure_single_process(options: Options) -> Measured:
    """Run one update of a run in one process."""
    plan = plan_run(build_config(options))
    module = _stage_module(plan, 0)
    pipeline = _pipeline(plan, module, StageChannels())
    with ActivationTracker(plan.batch.micro_batch_size) as tracker:
        pipeline.run(_feed(plan, first=True, last=True))
    return Measured(tracker.peak, 1)


def _pipeline(plan: RunPlan, module: nn.Module, channels: StageChannels) -> TrainingPipeline:
    def clear_gradients() -> None:
        module.zero_grad(set_to_none=True)

    count = plan.batch.gradient_accumulation
    stage = TrainingStage(module, channels, clear_gradients, plan.schedule, count)
    return classification_pipeline([stage], nn.functional.cross_entropy)


def compare(options: Options, measured: list[Measured]) -> list[Compared]:
    planned = plan_run(build_config(options)).memory
    return [
        Compared(stage, memory.activations, item.activations)
        for stage, (memory, item) in enumerate(zip(planned, measured, strict=True))
    ]


def _stage_module(plan: RunPlan, rank: int) -> nn.Module:
    stage = plan.stages[rank]
    layers = plan.network.layers[stage.first : stage.last + 1]
    live = Slice(layers, build_layers(layers, seed=3))
    live.to(memory_format=torch.channels_last)
    if not plan.recompute.enabled:
        return live
    norms = [module for module in live.modules() if isinstance(module, BatchNorm)]
    return RecomputedSlice(live, plan.recompute.checkpoints, lambda: _without_statistics(norms))


@contextmanager
def _without_statistics(norms: list[BatchNorm]) -> Iterator[None]:
    for norm in norms:
        norm.records_statistics = False
    try:
        yield
    finally:  # torch stops recomputation with an exception
        for norm in norms:
            norm.records_statistics = True


def _feed(plan: RunPlan, first: bool, last: bool) -> Iterator[PipelineInput]:
    """Micro-batches, with images only for the first stage and labels only for the last."""
    samples, size = plan.batch.micro_batch_size, plan.network.image_size
    for seed in range(plan.batch.gradient_accumulation):
        yield (
            _images(samples, size, seed) if first else None,
            torch.arange(samples) % CLASSES if last else None,
        )


def _images(samples: int, size: int, seed: int) -> Tensor:
    """Images in channels_last, as the infeed produces them."""
    rng = torch.Generator().manual_seed(seed)
    pixels = torch.empty(samples, size, size, 3).normal_(generator=rng)
    return pixels.permute(0, 3, 1, 2)
