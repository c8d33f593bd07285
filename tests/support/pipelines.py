"""Pipelines over real processes for tests, and the same training in one process.

A pool is a line of processes that stay: many cases can be run on them, one after the other.
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
from convoy.parallel.executor import MicroBatchResult, Pipeline, TrainingStage
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

SECONDS = 300  # nothing here may take longer, on a busy machine either
CPU = torch.device("cpu")
T = TypeVar("T")

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["convoy.parallel.executor", "convoy.parallel.inference"])


@dataclass(frozen=True)
class Case:
    """One update of a small network. Without starts it is trained in one piece."""

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
            case "pooled-norm":  # the gradient of the norm lies otherwise than its output
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
        """Images with their pixels together, as the infeed gives them."""
        output = [
            images_and_labels(self.samples, self.size, seed) for seed in range(self.micro_batches)
        ]
        return [(images.to(memory_format=torch.channels_last), labels) for images, labels in output]


@dataclass
class StageResult:
    """What a stage saw in one update, as digests where bits matter."""

    gradients: dict[str, list[str]] = field(default_factory=dict)  # one per micro-batch
    statistics: dict[str, list[str]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    stash: int = 0


def joined(parts: Sequence[StageResult]) -> StageResult:
    """All stages as if they were one."""
    full = StageResult(losses=parts[-1].losses, right=parts[-1].right)
    for part in parts:
        full.gradients.update(part.gradients)
        full.statistics.update(part.statistics)
    return full


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


class Trained:
    """A live slice of a case, with everything that one update leaves behind."""

    def __init__(self, case: Case, stage: int) -> None:
        plan = case.stages[stage]
        layers = case.layers[plan.first : plan.last + 1]
        self.slice = Slice(layers, build_layers(case.layers, seed=3))
        self.slice.to(memory_format=torch.channels_last)
        self.weights = self.slice.named_weights()
        self.module: nn.Module = self.slice
        if case.recompute is not None:
            self.module = RecomputedSlice(self.slice, case.recompute, self.quiet)
        self.seen = StageResult(gradients={name: [] for name in self.weights})

    @property
    def norms(self) -> dict[str, BatchNorm]:
        return {n: item for n, item in self.slice.layers.items() if isinstance(item, BatchNorm)}

    @contextmanager
    def quiet(self) -> Iterator[None]:
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
        self.seen.right = [int(result.correct) for result in results]
        return self.seen


def train_single_process(case: Case) -> StageResult:
    """The whole network in this process."""
    trained = Trained(case, 0)
    return trained.after(SingleStage(trained.module, smooth, trained.collect).run(case.batches()))


def smooth(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def channels_of(case: Case, group: dist.ProcessGroup) -> list[StageChannels]:
    """Of this process's stages: those at its rank, and one for each further time around."""
    local = case.stages[dist.get_rank(group) :: dist.get_world_size(group)]
    return connect([stage_boundary(case.network, item, case.samples) for item in local], group, CPU)


def pipeline_of(
    case: Case,
    parts: Sequence[Trained],
    group: dist.ProcessGroup,
    schedule: Schedule | None = None,
) -> Pipeline:
    order, count = schedule or case.order, case.micro_batches
    stages = [
        TrainingStage(part.module, channels, part.collect, order, count)
        for part, channels in zip(parts, channels_of(case, group), strict=True)
    ]
    return Pipeline(stages, smooth)


def train_stage(group: dist.ProcessGroup, case: Case, updates: int = 1) -> StageResult:
    """This process's part. Only the ends of the line get anything from the feed."""
    place, last = dist.get_rank(group), len(case.starts) - 1
    trained = Trained(case, place)
    pipeline = pipeline_of(case, [trained], group)
    results: list[MicroBatchResult] = []
    for _ in range(updates):
        results = pipeline.run(
            (images if place == 0 else None, labels if place == last else None)
            for images, labels in case.batches()
        )
    seen = trained.after(results)
    seen.stash = pipeline.peak_stash_seen
    return seen


def train_all(group: dist.ProcessGroup, cases: list[Case]) -> list[StageResult]:
    return [train_stage(group, case) for case in cases]


@dataclass(frozen=True)
class PredictionDigests:
    """What a stage gave back: digests of logits, and whether its layers are as they were."""

    logits: list[str | None]
    is_as_before: bool
    update_after: StageResult


def infer(group: dist.ProcessGroup, case: Case, is_training: bool = False) -> PredictionDigests:
    """The batches forward, in training or not; then an update, so that nothing may linger."""
    place = dist.get_rank(group)
    trained = Trained(case, place)
    trained.module.train(is_training)
    batches = [images if place == 0 else None for images, _ in case.batches()]
    inference = InferencePipeline([trained.module], channels_of(case, group))
    output, again = ([_digest(item) for item in inference.run(batches)] for _ in range(2))
    assert again == output  # a validation is not the last one
    return PredictionDigests(
        output,
        all(module.training == is_training for module in trained.module.modules()),
        train_stage(group, case),
    )


def _digest(logits: Tensor | None) -> str | None:
    return None if logits is None else digest(logits)


class InvalidSchedule(Schedule):
    """Promises what sequential keeps, and does all forwards first."""

    def actions(
        self, stage: int, stages: int, micro_batches: int, *, training: bool = True
    ) -> list[Action]:
        del stage, stages, training
        micros = range(micro_batches)
        return [*map(Forward, micros), *map(Backward, micros)]


def train_unruly(group: dist.ProcessGroup, case: Case) -> str:
    """What the line says to a schedule that does not keep its promise."""
    trained = Trained(case, dist.get_rank(group))
    try:
        pipeline_of(case, [trained], group, InvalidSchedule("unruly", "slot", 0)).run(
            case.batches()
        )
    except ConvoyError as error:
        return str(error)
    return "nothing"


@dataclass(frozen=True)
class Traffic:
    """How a stage went about its feed and its memory."""

    taken: list[int]  # micro-batches taken from the feed when each backward was done
    results: int
    left: int  # tensors of the border's sizes that are still there after the update


def watch(group: dist.ProcessGroup, case: Case) -> Traffic:
    """One update under observation."""
    place = dist.get_rank(group)
    trained = Trained(case, place)
    values: list[int] = []
    used: list[int] = []

    def feed() -> Iterator[tuple[Tensor, Tensor]]:
        for index, batch in enumerate(case.batches()):
            values.append(index)
            yield batch

    def collect() -> None:
        used.append(len(values))
        trained.collect()

    pipeline = pipeline_of(case, [trained], group)
    pipeline.stages[0].after_backward = collect
    results = pipeline.run(feed())
    boundary = stage_boundary(case.network, case.stages[place], case.samples)
    sizes = {*(boundary.incoming if place else ()), *boundary.outgoing}
    gc.collect()
    left = [item for item in gc.get_objects() if isinstance(item, Tensor) and item.shape in sizes]
    return Traffic(used, len(results), len(left))


class PipelinePool:
    """Processes in a line."""

    def __init__(self, pipes: list[Connection]) -> None:
        self.pipes = pipes

    def run(self, work: Callable[..., T], *words: Any) -> list[T]:
        """The work on every process at once, and what each gave back."""
        for pipe in self.pipes:
            pipe.send((work, words))
        return [self._answer(place) for place in range(len(self.pipes))]

    def _answer(self, place: int) -> Any:
        if not self.pipes[place].poll(SECONDS):
            raise TimeoutError(f"process {place} did not answer in {SECONDS} s")
        answer = self.pipes[place].recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def pipeline_pool(size: int, scratch: Path) -> Iterator[PipelinePool]:
    """A line of processes that ends with the block."""
    pipes, processes = [], []
    for place in range(size):
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_work, args=(theirs, scratch / "store", place, size))
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


def _work(pipe: Connection, store: Path, place: int, size: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(store), size),
        rank=place,
        world_size=size,
        timeout=timedelta(seconds=SECONDS),
    )
    group = dist.group.WORLD
    assert group is not None
    with suppress(EOFError):
        while True:
            work, words = pipe.recv()
            try:
                answer: Any = work(group, *words)
            except Exception as error:
                answer = error
            pipe.send(answer)
    os._exit(0)


def starts_of(case: Case, *names: str) -> tuple[int, ...]:
    """Stages that begin at these layers."""
    known = [layer.name for layer in case.layers]
    starts = (0, *(known.index(name) for name in names))
    assert all(before < after for before, after in pairwise(starts))
    return starts
