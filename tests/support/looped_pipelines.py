"""Pipelines with several stages per process; see `support/pipelines.py`."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from convoy.parallel.channels import P2PChannel, TensorSpec
from convoy.parallel.executor import MicroBatchResult
from convoy.parallel.inference import InferencePipeline
from support.pipelines import (
    CPU,
    Case,
    PredictionDigests,
    StageResult,
    Trained,
    channels_of,
    digest,
    pipeline_of,
)


@dataclass(frozen=True)
class LoopedResult:
    """The results of the stages of a process, and the peak stash of all of them."""

    seen: list[StageResult]
    stash: int


def local_stages(group: dist.ProcessGroup, case: Case) -> range:
    return range(dist.get_rank(group), len(case.starts), dist.get_world_size(group))


def train_loop(group: dist.ProcessGroup, case: Case, updates: int = 1) -> LoopedResult:
    """Train the stages of this process; the feed has images and labels only at the ends."""
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    parts = [Trained(case, stage) for stage in local_stages(group, case)]
    loop = pipeline_of(case, parts, group)
    results: list[MicroBatchResult] = []
    for _ in range(updates):
        results = loop.run(
            (images if rank == 0 else None, labels if rank == last else None)
            for images, labels in case.batches()
        )
    seen = [part.after(results) for part in parts]
    for item, stage in zip(seen, loop.stages, strict=True):
        item.stash = stage.peak_stash_seen
    return LoopedResult(seen, loop.peak_stash_seen)


def train_loops(group: dist.ProcessGroup, cases: list[Case]) -> list[LoopedResult]:
    return [train_loop(group, case) for case in cases]


def count_remaining_tensors(group: dist.ProcessGroup, case: Case) -> int:
    """The number of tensors with boundary shapes that remain after an update."""
    parts = [Trained(case, stage) for stage in local_stages(group, case)]
    loop = pipeline_of(case, parts, group)
    loop.run(case.batches())
    channels = [
        link for item in channels_of(case, group) for link in (item.upstream, item.downstream)
    ]
    shapes = {spec.shape for link in channels if link is not None for spec in link.sent_specs}
    gc.collect()
    return sum(isinstance(item, Tensor) and item.shape in shapes for item in gc.get_objects())


def in_order(processes: Sequence[LoopedResult]) -> list[StageResult]:
    """The stages of all processes, in pipeline order."""
    rounds = zip(*(process.seen for process in processes), strict=True)
    return [seen for stages in rounds for seen in stages]


def infer_looped(
    group: dist.ProcessGroup, case: Case, is_training: bool = False
) -> list[PredictionDigests]:
    """Run the batches forward in training or evaluation mode, then one update."""
    parts = [Trained(case, stage) for stage in local_stages(group, case)]
    for part in parts:
        part.module.train(is_training)
    predictions = _predictions(group, case, parts)
    after = train_loop(group, case).seen
    return [
        PredictionDigests(
            predictions,
            all(module.training == is_training for module in part.module.modules()),
            seen,
        )
        for part, seen in zip(parts, after, strict=True)
    ]


def predict_looped(group: dist.ProcessGroup, case: Case) -> list[str | None]:
    """Run the batches forward; their number need not be valid for the schedule."""
    return _predictions(group, case, [Trained(case, stage) for stage in local_stages(group, case)])


def _predictions(
    group: dist.ProcessGroup, case: Case, parts: Sequence[Trained]
) -> list[str | None]:
    batches: list[Tensor | None] = [
        images if dist.get_rank(group) == 0 else None for images, _ in case.batches()
    ]
    loop = InferencePipeline([part.module for part in parts], channels_of(case, group))
    output, again = (
        [None if logits is None else digest(logits) for logits in loop.run(batches)]
        for _ in range(2)
    )
    assert again == output  # inference can be repeated
    return output


def receive_in_reverse_order(group: dist.ProcessGroup) -> list[float]:
    """Process 0 sends over two channels; process 1 receives the second message first."""
    shape = (2, 3)
    specs = [TensorSpec(shape)]
    if dist.get_rank(group) == 0:
        channels = [P2PChannel(specs, specs, CPU, group, 1, tag) for tag in (1, 3)]
        for transfer in [
            channel.send([torch.full(shape, float(channel.tag))]) for channel in channels
        ]:
            transfer.wait()
        return []
    bundles = [P2PChannel(specs, specs, CPU, group, 0, tag).receive() for tag in (3, 1)]
    return [float(bundle[0].max()) for bundle in bundles]
