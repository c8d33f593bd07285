"""Training with synced batch norm, in the processes of `pipelines.pipeline_pool`."""

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
from convoy.parallel.executor import (
    PipelineInput,
    TrainingPipeline,
    TrainingStage,
    classification_pipeline,
)
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
    """A small training; `case` has its stages."""

    case: Case
    batch: BatchPlan

    @property
    def topology(self) -> TopologyPlan:
        return TopologyPlan(1, 1, self.batch.replicas, len(self.case.starts))

    def larger(self) -> "NormSyncCase":
        """One replica whose micro-batches are as large as those of a span in total."""
        plan = self.batch
        count = plan.micro_batches // plan.bn_span
        batch = BatchPlan(plan.micro_batch_size * plan.bn_span, count, 1)
        return NormSyncCase(Case(size=self.case.size), batch)

    def micro_batches(self, update: int, replica: int) -> list[tuple[Tensor, Tensor]]:
        """The micro-batches of one replica in an update."""
        images, labels = images_and_labels(self.batch.samples_per_update, self.case.size, update)
        images = images.to(memory_format=torch.channels_last)
        count = self.batch.micro_batches
        chunks = list(zip(images.chunk(count), labels.chunk(count), strict=True))
        return [chunks[micro] for micro in self.batch.micro_batches_of(replica)]


class Worker:
    """One stage of one replica."""

    def __init__(self, synced: NormSyncCase, rank: int) -> None:
        self.synced = synced
        coordinates = synced.topology.coordinates(rank)
        self.replica, self.stage = coordinates.replica, coordinates.stage
        self.trained = Trained(synced.case, self.stage)
        flat = FlatParameters(self.trained.slice.named_weights())
        self.tree = GradientTree(flat, self.replica * synced.batch.gradient_accumulation)
        norms = list(self.trained.norms.values())
        data_parallel = _group(synced.topology.replica_ranks(self.stage))
        replicas = (
            ExactReplicas(PeerGroup(data_parallel), ReduceOptions(False, 1 << 20))
            if data_parallel
            else Replicas()
        )
        first, span = self.replica - self.replica % synced.batch.bn_span, synced.batch.bn_span
        norm_sync = _group(synced.topology.replica_ranks(self.stage)[first : first + span])
        for norm in norms if norm_sync else []:
            norm.sync_with(PeerGroup(norm_sync))
        optimizer = Optimizer(flat, Sgd(OptimizerConfig()))
        self.update = Update(
            self._pipeline(),
            [ParameterGroup(self.tree, optimizer)],
            replicas,
            PendingStatistics(norms),
        )

    def _pipeline(self) -> TrainingPipeline:
        case, batch = self.synced.case, self.synced.batch
        group = _group(self.synced.topology.stage_ranks(self.replica))
        stage = case.stages[self.stage]
        boundary = stage_boundary(case.network, stage, batch.micro_batch_size)
        (channels,) = connect([boundary], group, CPU)
        return classification_pipeline(
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
        last = self.synced.topology.stages - 1
        for images, labels in self.synced.micro_batches(update, self.replica):
            yield (images if self.stage == 0 else None, labels if self.stage == last else None)


def _group(ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
    """A process group for one kind of message; None for a single rank."""
    if len(ranks) == 1:
        return None
    group = dist.new_group(list(ranks), use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)
    return group


def train(world: dist.ProcessGroup | None, synced: NormSyncCase) -> Arrays:
    """The weights and running statistics of the stage of this process after all updates."""
    worker = Worker(synced, world.rank() if world else 0)
    for update, rate in enumerate(RATES):
        worker.update(worker.feed(update), StepContext(rate))
    tensors = worker.trained.slice.named_tensors()
    return {name: item.detach().contiguous().numpy().copy() for name, item in tensors.items()}


def gather(world: dist.ProcessGroup, sizes: list[tuple[int, ...]]) -> list[list[float]]:
    """Gather tensors of many sizes in succession; returns the values from each rank."""
    peers, seen = PeerGroup(world), []
    assert peers.size == world.size()
    for number, size in enumerate(sizes):
        tensor = torch.full(size, 100.0 * number + world.rank()).transpose(0, -1)
        gathered = peers.all_gather(tensor)
        assert gathered.shape == (world.size(), *tensor.shape)
        seen.append([float(item.unique()) for item in gathered])
    return seen
