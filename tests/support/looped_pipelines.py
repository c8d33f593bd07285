"""Pipelines whose processes hold several stages each, for tests; see `support/pipelines.py`."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from convoy.parallel.channels import P2PChannel
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
    """What a process saw: an entry for each of its stages, and what it held in all."""

    seen: list[StageResult]
    stash: int


def own_stages(group: dist.ProcessGroup, case: Case) -> range:
    return range(dist.get_rank(group), len(case.starts), dist.get_world_size(group))


def train_loop(group: dist.ProcessGroup, case: Case, updates: int = 1) -> LoopedResult:
    """This process's part. Only the ends of the line get anything from the feed."""
    place, last = dist.get_rank(group), dist.get_world_size(group) - 1
    parts = [Trained(case, stage) for stage in own_stages(group, case)]
    loop = pipeline_of(case, parts, group)
    passed: list[MicroBatchResult] = []
    for _ in range(updates):
        passed = loop.run(
            (images if place == 0 else None, labels if place == last else None)
            for images, labels in case.batches()
        )
    seen = [part.after(passed) for part in parts]
    for item, stage in zip(seen, loop.stages, strict=True):
        item.stash = stage.peak_stash_seen
    return LoopedResult(seen, loop.peak_stash_seen)


def train_loops(group: dist.ProcessGroup, cases: list[Case]) -> list[LoopedResult]:
    return [train_loop(group, case) for case in cases]


def leave_nothing(group: dist.ProcessGroup, case: Case) -> int:
    """Tensors of the borders' sizes that are still there after an update."""
    parts = [Trained(case, stage) for stage in own_stages(group, case)]
    loop = pipeline_of(case, parts, group)
    loop.run(case.batches())
    channels = [
        link for item in channels_of(case, group) for link in (item.upstream, item.downstream)
    ]
    shapes = {shape for link in channels if link is not None for shape in link.shapes}
    gc.collect()
    return sum(isinstance(item, Tensor) and item.shape in shapes for item in gc.get_objects())


def in_order(processes: Sequence[LoopedResult]) -> list[StageResult]:
    """The stages of all processes, as the micro-batches pass them."""
    turns = zip(*(process.seen for process in processes), strict=True)
    return [seen for turn in turns for seen in turn]


def infer_looped(
    group: dist.ProcessGroup, case: Case, is_training: bool = False
) -> list[PredictionDigests]:
    """The batches forward, in training or not; then an update, so that nothing may linger."""
    parts = [Trained(case, stage) for stage in own_stages(group, case)]
    for part in parts:
        part.module.train(is_training)
    answers = _answers(group, case, parts)
    after = train_loop(group, case).seen
    return [
        PredictionDigests(
            answers, all(module.training == is_training for module in part.module.modules()), seen
        )
        for part, seen in zip(parts, after, strict=True)
    ]


def answer_around(group: dist.ProcessGroup, case: Case) -> list[str | None]:
    """The batches forward, and nothing else: their number need not suit the schedule."""
    return _answers(group, case, [Trained(case, stage) for stage in own_stages(group, case)])


def _answers(group: dist.ProcessGroup, case: Case, parts: Sequence[Trained]) -> list[str | None]:
    batches: list[Tensor | None] = [
        images if dist.get_rank(group) == 0 else None for images, _ in case.batches()
    ]
    loop = InferencePipeline([part.module for part in parts], channels_of(case, group))
    output, again = (
        [None if logits is None else digest(logits) for logits in loop.run(batches)]
        for _ in range(2)
    )
    assert again == output  # a validation is not the last one
    return output


def cross(group: dist.ProcessGroup) -> list[float]:
    """Process 0 sends over two borders; process 1 asks for what comes second first."""
    shape = (2, 3)
    if dist.get_rank(group) == 0:
        channels = [P2PChannel([shape], CPU, group, 1, tag) for tag in (1, 3)]
        for transfer in [
            channel.send([torch.full(shape, float(channel.tag))]) for channel in channels
        ]:
            transfer.wait()
        return []
    bundles = [P2PChannel([shape], CPU, group, 0, tag).receive() for tag in (3, 1)]
    return [float(bundle[0].max()) for bundle in bundles]
