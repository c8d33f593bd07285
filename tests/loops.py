"""Pipelines whose processes hold several stages each, for tests; see `lines.py`."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from lines import CPU, Answers, Case, Seen, Trained, digest, smooth
from torch import Tensor

from convoy.parallel.inference import Inference
from convoy.parallel.line import Line
from convoy.parallel.link import Link, roads_of
from convoy.parallel.pipeline import Passed
from convoy.parallel.stage import Borders, Stage, borders_of


@dataclass(frozen=True)
class Around:
    """What a process saw: an entry for each of its stages, and what it held in all."""

    seen: list[Seen]
    stash: int


def own_stages(group: dist.ProcessGroup, case: Case) -> range:
    return range(dist.get_rank(group), len(case.starts), dist.get_world_size(group))


def borders_in(case: Case, stage: int) -> Borders:
    return borders_of(case.network, case.stages[stage], case.samples, CPU)


def loop_of(group: dist.ProcessGroup, case: Case, parts: Sequence[Trained]) -> Line:
    stages = [
        Stage(part.module, borders_in(case, stage), group, case.order, case.micro_batches, turn)
        for turn, (stage, part) in enumerate(zip(own_stages(group, case), parts, strict=True))
    ]
    return Line(stages, smooth, [part.collect for part in parts])


def train_loop(group: dist.ProcessGroup, case: Case, updates: int = 1) -> Around:
    """This process's part. Only the ends of the line get anything from the feed."""
    place, last = dist.get_rank(group), dist.get_world_size(group) - 1
    parts = [Trained(case, stage) for stage in own_stages(group, case)]
    loop = loop_of(group, case, parts)
    passed: list[Passed] = []
    for _ in range(updates):
        passed = loop.run(
            (images if place == 0 else None, labels if place == last else None)
            for images, labels in case.batches()
        )
    seen = [part.after(passed) for part in parts]
    for one, stage in zip(seen, loop.stages, strict=True):
        one.stash, one.received = stage.stash_seen, stage.received_seen
    return Around(seen, loop.stash_seen)


def train_loops(group: dist.ProcessGroup, cases: list[Case]) -> list[Around]:
    return [train_loop(group, case) for case in cases]


def leave_nothing(group: dist.ProcessGroup, case: Case) -> int:
    """Tensors of the borders' sizes that are still there after an update."""
    parts = [Trained(case, stage) for stage in own_stages(group, case)]
    loop = loop_of(group, case, parts)
    loop.run(case.batches())
    borders = [borders_in(case, stage) for stage in own_stages(group, case)]
    sizes = {size for one in borders for size in one.outgoing}
    sizes |= {size for one in borders for size in one.incoming if size[1] != 3}  # not images
    gc.collect()
    return sum(isinstance(one, Tensor) and one.shape in sizes for one in gc.get_objects())


def in_order(processes: Sequence[Around]) -> list[Seen]:
    """The stages of all processes, as the micro-batches pass them."""
    turns = zip(*(process.seen for process in processes), strict=True)
    return [seen for turn in turns for seen in turn]


def infer_around(group: dist.ProcessGroup, case: Case, is_training: bool = False) -> list[Answers]:
    """The batches forward, in training or not; then an update, so that nothing may linger."""
    parts = [Trained(case, stage) for stage in own_stages(group, case)]
    for part in parts:
        part.module.train(is_training)
    answers = _answers(group, case, parts)
    after = train_loop(group, case).seen
    return [
        Answers(answers, all(one.training == is_training for one in part.module.modules()), seen)
        for part, seen in zip(parts, after, strict=True)
    ]


def answer_around(group: dist.ProcessGroup, case: Case) -> list[str | None]:
    """The batches forward, and nothing else: their number need not suit the schedule."""
    return _answers(group, case, [Trained(case, stage) for stage in own_stages(group, case)])


def _answers(group: dist.ProcessGroup, case: Case, parts: Sequence[Trained]) -> list[str | None]:
    borders = [borders_in(case, stage) for stage in own_stages(group, case)]
    batches: list[Tensor | None] = [
        images if dist.get_rank(group) == 0 else None for images, _ in case.batches()
    ]
    loop = Inference([part.module for part in parts], borders, group)
    made, again = (
        [None if logits is None else digest(logits) for logits in loop.run(batches)]
        for _ in range(2)
    )
    assert again == made  # a validation is not the last one
    return made


def cross(group: dist.ProcessGroup) -> list[float]:
    """Process 0 sends over two borders; process 1 asks for what comes second first."""
    size = (2, 3)
    if dist.get_rank(group) == 0:
        roads = [roads_of(group, stage)[1] for stage in (0, 2)]
        sent = [
            Link((size,), CPU, one).send([torch.full(size, float(one.border))]) for one in roads
        ]
        for one in sent:
            one.wait()
        return []
    roads = [roads_of(group, stage)[0] for stage in (3, 1)]
    bundles = [Link((size,), CPU, one).receive().wait() for one in roads]
    return [float(bundle[0].max()) for bundle in bundles]
