"""Trainings with shared batch statistics, for the processes of `pipelines.pipeline_pool`."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from convoy.config.sections.training import OptimizerConfig
from convoy.engine.update import ParameterGroup, Update
from convoy.layers.norms import PendingStatistics
from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import GradientTree
from convoy.optim.optimizer import Optimizer
from convoy.optim.update_rules import Sgd, StepContext
from convoy.parallel.channels import connect
from convoy.parallel.collectives import PeerGroup
from convoy.parallel.executor import Pipeline, PipelineInput, TrainingStage
from convoy.parallel.replicas import ExactReplicas, ReduceOptions, Replicas
from convoy.planning.schedules import SCHEDULES
from convoy.planning.stages import stage_boundary
from convoy.planning.topology import BatchPlan, TopologyPlan
from support.networks import images_and_labels
from support.pipelines import CPU, Case, Trained, smooth

RATES = [0.05, 0.1, 0.02]
Arrays = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class NormSyncCase:
    """A small training; the stages are those of the case."""

    case: Case
    batch: BatchPlan

    @property
    def topology(self) -> TopologyPlan:
        return TopologyPlan(1, 1, self.batch.replicas, len(self.case.starts))

    def larger(self) -> "NormSyncCase":
        """One replica whose micro-batches are as large as those of a span together."""
        plan = self.batch
        count = plan.micro_batches // plan.bn_span
        batch = BatchPlan(plan.micro_batch_size * plan.bn_span, count, 1)
        return NormSyncCase(Case(size=self.case.size), batch)

    def micro_batches(self, update: int, replica: int) -> list[tuple[Tensor, Tensor]]:
        """Those of one replica, cut out of all samples of the update."""
        images, labels = images_and_labels(self.batch.samples_per_update, self.case.size, update)
        images = images.to(memory_format=torch.channels_last)
        count = self.batch.micro_batches
        pieces = list(zip(images.chunk(count), labels.chunk(count), strict=True))
        return [pieces[micro] for micro in self.batch.micro_batches_of(replica)]


class Worker:
    """One stage of one replica."""

    def __init__(self, spanned: NormSyncCase, rank: int) -> None:
        self.spanned = spanned
        here = spanned.topology.coordinates(rank)
        self.replica, self.stage = here.replica, here.stage
        self.trained = Trained(spanned.case, self.stage)
        flat = FlatParameters(self.trained.slice.named_weights())
        self.tree = GradientTree(flat, self.replica * spanned.batch.gradient_accumulation)
        norms = list(self.trained.norms.values())
        siblings = _group(spanned.topology.replica_ranks(self.stage))
        replicas = (
            ExactReplicas(PeerGroup(siblings), ReduceOptions(False, 1 << 20))
            if siblings
            else Replicas()
        )
        first, span = self.replica - self.replica % spanned.batch.bn_span, spanned.batch.bn_span
        partners = _group(spanned.topology.replica_ranks(self.stage)[first : first + span])
        for norm in norms if partners else []:
            norm.sync_with(PeerGroup(partners))
        optimizer = Optimizer(flat, Sgd(OptimizerConfig()))
        self.update = Update(
            self._pipeline(),
            [ParameterGroup(self.tree, optimizer)],
            replicas,
            PendingStatistics(norms),
        )

    def _pipeline(self) -> Pipeline:
        case, batch = self.spanned.case, self.spanned.batch
        group = _group(self.spanned.topology.stage_ranks(self.replica))
        stage = case.stages[self.stage]
        boundary = stage_boundary(case.network, stage, batch.micro_batch_size)
        (channels,) = connect([boundary], group, CPU)
        return Pipeline(
            [
                TrainingStage(
                    self.trained.module,
                    channels,
                    self.tree.collect,
                    SCHEDULES[case.schedule],
                    batch.gradient_accumulation,
                )
            ],
            smooth,
        )

    def feed(self, update: int) -> Iterator[PipelineInput]:
        last = self.spanned.topology.stages - 1
        for images, labels in self.spanned.micro_batches(update, self.replica):
            yield (images if self.stage == 0 else None, labels if self.stage == last else None)


def _group(ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
    """Messages of one kind only; nobody is met by a process alone."""
    if len(ranks) == 1:
        return None
    group = dist.new_group(list(ranks), use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)
    return group


def train(world: dist.ProcessGroup | None, spanned: NormSyncCase) -> Arrays:
    """Weights and running statistics of this process's stage after all updates."""
    worker = Worker(spanned, world.rank() if world else 0)
    for update, rate in enumerate(RATES):
        worker.update(worker.feed(update), StepContext(rate))
    tensors = worker.trained.slice.named_tensors()
    return {name: item.detach().contiguous().numpy().copy() for name, item in tensors.items()}


def gather(world: dist.ProcessGroup, sizes: list[tuple[int, ...]]) -> list[list[float]]:
    """Tensors of many sizes, one right after the other: the places and sizes that came."""
    partners, seen = PeerGroup(world), []
    assert partners.size == world.size()
    for number, size in enumerate(sizes):
        part = torch.full(size, 100.0 * number + world.rank()).transpose(0, -1)
        got = partners.all_gather(part)
        assert got.shape == (world.size(), *part.shape)
        seen.append([float(item.unique()) for item in got])
    return seen
