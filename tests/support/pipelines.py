"""Pipelines over worker processes, and the same training in one process.

The processes of a pool run any number of cases, one after the other.
"""

import gc
import hashlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from convoy.errors import ConvoyError
from convoy.layers.build import build_layers
from convoy.layers.norms import BatchNorm
from convoy.models.layers import LayerPlan, LinearSpec, Shape, layer_costs
from convoy.models.network import NetworkPlan
from convoy.parallel.channels import StageChannels, connect
from convoy.parallel.executor import (
    MicroBatchResult,
    TrainingPipeline,
    TrainingStage,
    classification_pipeline,
)
from convoy.parallel.inference import InferencePipeline
from convoy.parallel.slice import RecomputedSlice, Slice
from convoy.planning.actions import Action, Backward, Forward
from convoy.planning.schedules import Schedule, make_schedule
from convoy.planning.stages import StagePlan, stage_boundary, stages_from_starts
from support.networks import (
    CLASSES,
    SingleStage,
    bottleneck_layers,
    images_and_labels,
    small_layers,
)

SECONDS = 300  # timeout, long enough for a busy machine
CPU = torch.device("cpu")
T = TypeVar("T")

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["convoy.parallel.executor", "convoy.parallel.inference"])


@dataclass(frozen=True)
class Case:
    """One update of a small network. The default has a single stage."""

    starts: tuple[int, ...] = (0,)
    schedule: str = "grouped"
    micro_batches: int = 4
    model: str = "resnet8"
    size: int = 12
    samples: int = 4
    recompute: tuple[str, ...] | None = None
    stages_per_process: int = 1

    @property
    def order(self) -> Schedule:
        return make_schedule(self.schedule, self.stages_per_process)

    @property
    def layers(self) -> tuple[LayerPlan, ...]:
        match self.model:
            case "resnet8":
                return small_layers()
            case "resnet8-pad":
                return small_layers(shortcut_type="A")
            case "resnet8-group":
                return small_layers("group")
            case (
                "pooled-norm"
            ):  # the gradient of the norm has another memory format than its output
                chosen = [
                    layer for layer in small_layers() if layer.name in ("conv1", "bn1", "avgpool")
                ]
                return (*chosen, LayerPlan("fc", LinearSpec(16, CLASSES)))
            case _:
                return bottleneck_layers(zero=False)

    @property
    def network(self) -> NetworkPlan:
        costs = layer_costs(self.layers, Shape(3, self.size))
        return NetworkPlan(self.layers, costs, self.size, CLASSES)

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        return stages_from_starts([layer.name for layer in self.layers], self.starts)

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Images in channels_last, as the infeed produces them."""
        output = [
            images_and_labels(self.samples, self.size, seed) for seed in range(self.micro_batches)
        ]
        return [(images.to(memory_format=torch.channels_last), labels) for images, labels in output]


@dataclass
class StageResult:
    """Results of a stage in one update; tensors are digests."""

    gradients: dict[str, list[str]] = field(default_factory=dict)  # one per micro-batch
    statistics: dict[str, list[str]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    correct: list[int] = field(default_factory=list)
    stash: int = 0


def joined(parts: Sequence[StageResult]) -> StageResult:
    """Merge the results of all stages."""
    full = StageResult(losses=parts[-1].losses, correct=parts[-1].correct)
    for part in parts:
        full.gradients.update(part.gradients)
        full.statistics.update(part.statistics)
    return full


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


class Trained:
    """A slice of a case that records the results of one update."""

    def __init__(self, case: Case, stage: int) -> None:
        plan = case.stages[stage]
        layers = case.layers[plan.first : plan.last + 1]
        self.slice = Slice(layers, build_layers(case.layers, seed=3))
        self.slice.to(memory_format=torch.channels_last)
        self.weights = self.slice.named_weights()
        self.module: nn.Module = self.slice
        if case.recompute is not None:
            self.module = RecomputedSlice(self.slice, case.recompute, self.without_statistics)
        self.seen = StageResult(gradients={name: [] for name in self.weights})

    @property
    def norms(self) -> dict[str, BatchNorm]:
        return {n: item for n, item in self.slice.layers.items() if isinstance(item, BatchNorm)}

    @contextmanager
    def without_statistics(self) -> Iterator[None]:
        for norm in self.norms.values():
            norm.records_statistics = False
        try:
            yield
        finally:
            for norm in self.norms.values():
                norm.records_statistics = True

    def collect(self) -> None:
        for name, weight in self.weights.items():
            assert weight.grad is not None
            self.seen.gradients[name].append(digest(weight.grad))
            weight.grad = None

    def after(self, results: list[MicroBatchResult]) -> StageResult:
        for name, norm in self.norms.items():
            self.seen.statistics[name] = [
                digest(torch.cat([mean, variance])) for mean, variance in norm.pending_statistics
            ]
        self.seen.losses = [float(result.loss) for result in results]
        self.seen.correct = [int(result.correct) for result in results]
        return self.seen


def train_single_process(case: Case) -> StageResult:
    """Train the network in this process."""
    trained = Trained(case, 0)
    return trained.after(SingleStage(trained.module, smooth, trained.collect).run(case.batches()))


def smooth(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def channels_of(case: Case, group: dist.ProcessGroup) -> list[StageChannels]:
    """The channels of the stages of this process; a looped process has several stages."""
    local = case.stages[dist.get_rank(group) :: dist.get_world_size(group)]
    return connect([stage_boundary(case.network, item, case.samples) for item in local], group, CPU)


def pipeline_of(
    case: Case,
    parts: Sequence[Trained],
    group: dist.ProcessGroup,
    schedule: Schedule | None = None,
) -> TrainingPipeline:
    order, count = schedule or case.order, case.micro_batches
    stages = [
        TrainingStage(part.module, channels, part.collect, order, count)
        for part, channels in zip(parts, channels_of(case, group), strict=True)
    ]
    return classification_pipeline(stages, smooth)


def train_stage(group: dist.ProcessGroup, case: Case, updates: int = 1) -> StageResult:
    """Train the stage of this process; the feed has images and labels only at the ends."""
    rank, last = dist.get_rank(group), len(case.starts) - 1
    trained = Trained(case, rank)
    pipeline = pipeline_of(case, [trained], group)
    results: list[MicroBatchResult] = []
    for _ in range(updates):
        results = pipeline.run(
            (images if rank == 0 else None, labels if rank == last else None)
            for images, labels in case.batches()
        )
    seen = trained.after(results)
    seen.stash = pipeline.peak_stash_seen
    return seen


def train_all(group: dist.ProcessGroup, cases: list[Case]) -> list[StageResult]:
    return [train_stage(group, case) for case in cases]


@dataclass(frozen=True)
class PredictionDigests:
    """Digests of the logits of a stage, and whether the mode of its layers is unchanged."""

    logits: list[str | None]
    is_as_before: bool
    update_after: StageResult


def infer(group: dist.ProcessGroup, case: Case, is_training: bool = False) -> PredictionDigests:
    """Run the batches forward in training or evaluation mode, then one update."""
    rank = dist.get_rank(group)
    trained = Trained(case, rank)
    trained.module.train(is_training)
    batches = [images if rank == 0 else None for images, _ in case.batches()]
    inference = InferencePipeline([trained.module], channels_of(case, group))
    output, again = ([_digest(item) for item in inference.run(batches)] for _ in range(2))
    assert again == output  # inference can be repeated
    return PredictionDigests(
        output,
        all(module.training == is_training for module in trained.module.modules()),
        train_stage(group, case),
    )


def _digest(logits: Tensor | None) -> str | None:
    return None if logits is None else digest(logits)


class InvalidSchedule(Schedule):
    """Declares the stash of the sequential schedule, but runs all forward passes first."""

    def actions(
        self, stage: int, stages: int, micro_batches: int, *, training: bool = True
    ) -> list[Action]:
        del stage, stages, training
        micros = range(micro_batches)
        return [*map(Forward, micros), *map(Backward, micros)]


def train_with_invalid_schedule(group: dist.ProcessGroup, case: Case) -> str:
    """The error of a pipeline whose schedule exceeds its stash."""
    trained = Trained(case, dist.get_rank(group))
    try:
        pipeline_of(case, [trained], group, InvalidSchedule("invalid", "slot", 0)).run(
            case.batches()
        )
    except ConvoyError as error:
        return str(error)
    return "no error"


@dataclass(frozen=True)
class Traffic:
    """How a stage uses its feed and its memory."""

    taken: list[int]  # micro-batches taken from the feed at the end of each backward
    results: int
    left: int  # tensors with boundary shapes that remain after the update


def watch(group: dist.ProcessGroup, case: Case) -> Traffic:
    """Run one update and record the use of the feed and the memory."""
    rank = dist.get_rank(group)
    trained = Trained(case, rank)
    taken: list[int] = []
    taken_at_backward: list[int] = []

    def feed() -> Iterator[tuple[Tensor, Tensor]]:
        for index, batch in enumerate(case.batches()):
            taken.append(index)
            yield batch

    def collect() -> None:
        taken_at_backward.append(len(taken))
        trained.collect()

    pipeline = pipeline_of(case, [trained], group)
    pipeline.stages[0].after_backward = collect
    results = pipeline.run(feed())
    boundary = stage_boundary(case.network, case.stages[rank], case.samples)
    sizes = {*(boundary.incoming if rank else ()), *boundary.outgoing}
    gc.collect()
    left = [item for item in gc.get_objects() if isinstance(item, Tensor) and item.shape in sizes]
    return Traffic(taken_at_backward, len(results), len(left))


class PipelinePool:
    """The processes of a pipeline."""

    def __init__(self, pipes: list[Connection]) -> None:
        self.pipes = pipes

    def run(self, work: Callable[..., T], *args: Any) -> list[T]:
        """Call a function in every process and return all results."""
        for pipe in self.pipes:
            pipe.send((work, args))
        return [self._receive(rank) for rank in range(len(self.pipes))]

    def _receive(self, rank: int) -> Any:
        if not self.pipes[rank].poll(SECONDS):
            raise TimeoutError(f"no result from process {rank} within {SECONDS} s")
        result = self.pipes[rank].recv()
        if isinstance(result, Exception):
            raise result
        return result


@contextmanager
def pipeline_pool(size: int, scratch: Path) -> Iterator[PipelinePool]:
    """A pool whose processes end with the block."""
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_work, args=(theirs, scratch / "store", rank, size))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        yield PipelinePool(pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(10)
            process.kill()
            process.join()


def _work(pipe: Connection, store: Path, rank: int, size: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(store), size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=SECONDS),
    )
    group = dist.group.WORLD
    assert group is not None
    with suppress(EOFError):
        while True:
            work, args = pipe.recv()
            try:
                result: Any = work(group, *args)
            except Exception as error:
                result = error
            pipe.send(result)
    os._exit(0)


def starts_of(case: Case, *names: str) -> tuple[int, ...]:
    """The first layers of stages that start at these names."""
    known = [layer.name for layer in case.layers]
    starts = (0, *(known.index(name) for name in names))
    assert all(before < after for before, after in pairwise(starts))
    return starts
