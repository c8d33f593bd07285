"""How well stages and replicas use two cores.

    python benchmarks/pipeline.py stages   [--model resnet20] [--batch 32] [--rounds 20]
    python benchmarks/pipeline.py replicas [--model resnet20] [--batch 64] [--rounds 20]

`stages`: two stages of one thread each, 16 micro-batches. In each round every stage times its own
forward and backward passes while the other stage does the same; then each schedule makes an update.
Efficiency is the time of the ideal schedule with those stage times ÷ the time it took.

`replicas`: two replicas of one thread each against one process of two threads with the same samples
an update, and against torch's DistributedDataParallel, in turn. Ratios are of images per second.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from assembled import context_of, parts_of, plan_of, update_of
from interleaved import options_of, ratio_with_interval
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from convoy.engine.update import CrossEntropy, collect_gradients
from convoy.launch.supervisor import run_workers
from convoy.launch.world import World
from convoy.layers.norms import PendingStatistics
from convoy.machine import keep_freed_memory
from convoy.parallel.control import SyncPoint
from convoy.parallel.process_groups import ProcessGroups, RankGroup, Rendezvous, init_process_groups
from convoy.planning.actions import Action, Forward, start_times
from convoy.planning.plan import RunPlan
from convoy.planning.schedules import SCHEDULES as KNOWN
from convoy.planning.stages import stage_boundary
from convoy.planning.topology import TopologyPlan
from convoy.run.build import TrainingParts, build_training_network
from convoy.run.process import ProcessContext, join_run, make_deterministic

MICRO_BATCHES = 16
SCHEDULES = ("grouped", "interleaved")
PASSES = 5


def planned(payload: dict[str, Any], **more: Any) -> RunPlan:
    return plan_of(
        {
            "model": payload["model"],
            "data": "synthetic",
            "image_size": payload["size"],
            "num_classes": 10,
            "threads": 1,
            **more,
        }
    )


# -- stages ------------------------------------------------------------------------------------


class StandIn:
    """One stage alone, with inputs and gradients of the right shape that come from nowhere."""

    def __init__(self, parts: TrainingParts) -> None:
        self.parts = parts
        context, plan = parts.context, parts.context.plan
        samples = plan.batch.micro_batch_size
        borders = stage_boundary(plan.network, context.stages[0], samples)
        self.is_first, self.is_last = context.needed_inputs.images, context.needed_inputs.labels
        self.given = [_laid(torch.randn(size)) for size in borders.incoming]
        self.answer = [_laid(torch.randn(size)) for size in borders.outgoing]
        self.labels = torch.randint(10, (samples,))
        self.loss = CrossEntropy(plan.config.loss)

    def times(self) -> tuple[float, float]:
        """Median seconds of a forward and of a backward pass, taking the gradients included."""
        pairs = [self._pass() for _ in range(PASSES)]
        PendingStatistics(self.parts.network.norms).discard()
        for one in self.parts.groups:
            one.gradients.clear()
        return median(one for one, _ in pairs), median(one for _, one in pairs)

    def _pass(self) -> tuple[float, float]:
        given = [one.clone().requires_grad_(not self.is_first) for one in self.given]
        began = perf_counter()
        made = self.parts.network.stage_modules[0](*given)
        loss = self.loss(made[0], self.labels) if self.is_last else None
        between = perf_counter()
        if loss is not None:
            loss.backward()
        else:
            torch.autograd.backward(made, self.answer)
        collect_gradients(self.parts.groups)
        return between - began, perf_counter() - between


def _laid(tensor: Tensor) -> Tensor:
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def time_stages(world: World, payload: dict[str, Any]) -> int:
    """One stage's part; the first process writes down what all measured."""
    keep_freed_memory()
    plans = {
        name: planned(
            payload,
            micro_batch_size=payload["batch"],
            shards=2,
            gradient_accumulation=MICRO_BATCHES,
            pipeline_schedule=name,
            enable_recompute=payload["recompute"],
        )
        for name in SCHEDULES
    }
    with join_run(world, plans["grouped"]) as context:
        runs = {name: parts_of(replace(context, plan=plan)) for name, plan in plans.items()}
        rows = [one_round(context, runs) for _ in range(payload["rounds"] + 2)][2:]
        found = context.control.all_gather_tensor(
            SyncPoint.CLOSE, 0, torch.tensor(rows, dtype=torch.float64)
        )
    if world.rank == 0:
        Path(payload["result"]).write_text(json.dumps([one.tolist() for one in found]))
    return 0


def one_round(context: ProcessContext, runs: dict[str, TrainingParts]) -> list[float]:
    """Forward, backward, then an update under each schedule; the weights stay as they are."""
    stand_in = StandIn(runs["grouped"])
    runs["grouped"].network.slice.train()
    context.control.all_gather(SyncPoint.STOP, 0)
    row = [*stand_in.times()]
    for run in runs.values():
        context.control.all_gather(SyncPoint.STOP, 0)
        update, began = update_of(run, 0.0), perf_counter()
        update()
        context.control.all_gather(SyncPoint.STOP, 0)
        row.append(perf_counter() - began)
    return row


def show_stages(found: list[list[list[float]]]) -> None:
    forward, backward = (
        tuple(median(row[column] for row in stage) for stage in found) for column in (0, 1)
    )
    print(f"stage times: forward {_ms(forward)}, backward {_ms(backward)} (median)")
    for column, name in enumerate(SCHEDULES, start=2):
        ideal, taken = [], []
        for first, second in zip(*found, strict=True):
            ideal.append(_ideal(name, (first, second)))
            taken.append(max(first[column], second[column]))
        value, low, high = ratio_with_interval(ideal, taken)
        print(f"{name}: efficiency {value:.3f} [{low:.3f}, {high:.3f}], {median(taken):.3f} s")


def _ideal(name: str, stages: Sequence[Sequence[float]]) -> float:
    """Seconds of an update whose passes, forward and backward, take so long on each stage."""

    def seconds(action: Action, stage: int) -> float:
        return stages[stage][0 if isinstance(action, Forward) else 1]

    orders = KNOWN[name].orders(len(stages), MICRO_BATCHES)
    rows = enumerate(zip(orders, start_times(orders, seconds), strict=True))
    return max(starts[-1] + seconds(order[-1], stage) for stage, (order, starts) in rows)


def _ms(times: tuple[float, ...]) -> str:
    return " / ".join(f"{1000 * one:.1f} ms" for one in times)


# -- replicas ----------------------------------------------------------------------------------


def time_replicas(world: World, payload: dict[str, Any]) -> int:
    """Ranks 0 and 1 are replicas, rank 2 is the process of two threads; they take turns."""
    keep_freed_memory()
    topology = TopologyPlan(hosts=1, instances=1, replicas=3, stages=1)
    everybody = init_process_groups(
        world.rank, world.world_size, topology, Rendezvous(world.rendezvous, True)
    ).world.process_group
    assert everybody is not None
    pair = dist.new_group([0, 1])
    cores = sorted(payload["cores"])
    if world.rank == 2:
        os.sched_setaffinity(0, cores)
        steps = {"alone": lone_step(payload)}
        make_deterministic(2)
    else:
        assert isinstance(pair, dist.ProcessGroup)
        os.sched_setaffinity(0, {cores[world.rank % len(cores)]})
        steps = {"ours": replica_step(payload, world.rank, pair), "ddp": ddp_step(payload, pair)}
        make_deterministic(1)
    rows = [turns(steps, everybody) for _ in range(payload["rounds"] + 2)][2:]
    found = [torch.zeros(len(rows), 3, dtype=torch.float64) for _ in range(3)]
    dist.all_gather(found, torch.tensor(rows, dtype=torch.float64), group=everybody)
    if world.rank == 0:
        Path(payload["result"]).write_text(json.dumps([one.tolist() for one in found]))
    return 0


def turns(steps: dict[str, Callable[[], None]], everybody: dist.ProcessGroup) -> list[float]:
    row = []
    for name in ("ours", "alone", "ddp"):
        dist.barrier(group=everybody)
        began = perf_counter()
        if name in steps:
            steps[name]()
        row.append(perf_counter() - began)
    return row


def lone_step(payload: dict[str, Any]) -> Callable[[], None]:
    plan = planned(payload, micro_batch_size=2 * payload["batch"])
    return update_of(parts_of(context_of(plan)))


def replica_step(payload: dict[str, Any], rank: int, pair: dist.ProcessGroup) -> Callable[[], None]:
    plan = planned(payload, micro_batch_size=payload["batch"], replicas=2)
    alone = RankGroup((rank,), 0, None)
    siblings = RankGroup((0, 1), rank, pair)
    groups = replace(ProcessGroups.single_process(), pipeline=alone, data_parallel=siblings)
    return update_of(parts_of(context_of(plan, rank, groups)))


def ddp_step(payload: dict[str, Any], pair: dist.ProcessGroup) -> Callable[[], None]:
    """The same network as torch's own users would train it."""
    plan = planned(payload, micro_batch_size=payload["batch"])
    network = build_training_network(context_of(plan))
    wrapped = DistributedDataParallel(network.slice, process_group=pair)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    size = (payload["batch"], 3, payload["size"], payload["size"])
    images, labels = _laid(torch.randn(size)), torch.randint(10, size[:1])

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(wrapped(images)[0], labels).backward()
        optimizer.step()
        PendingStatistics(network.norms).discard()

    return step


def show_replicas(found: list[list[list[float]]]) -> None:
    ours = [max(a[0], b[0]) for a, b in zip(found[0], found[1], strict=True)]
    ddp = [max(a[2], b[2]) for a, b in zip(found[0], found[1], strict=True)]
    alone = [row[1] for row in found[2]]
    for text, above, below in (
        ("two replicas against one process of two threads", alone, ours),
        ("torch's DDP against one process of two threads", alone, ddp),
        ("two replicas against torch's DDP", ddp, ours),
    ):
        value, low, high = ratio_with_interval(above, below)
        print(f"{text}: {value:.3f} × its images/s [{low:.3f}, {high:.3f}]")
    print(f"seconds an update: ours {median(ours):.3f}, one {median(alone):.3f}, {median(ddp):.3f}")


# -- both --------------------------------------------------------------------------------------


PARTS = {"stages": (2, time_stages, show_stages), "replicas": (3, time_replicas, show_replicas)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--no-recompute", action="store_true")
    asked = options_of(parser, {"model": "resnet8", "batch": 2, "size": 8, "rounds": 1})
    processes, target, show = PARTS[asked.part]
    topology = TopologyPlan(hosts=1, instances=1, replicas=1, stages=processes)
    with TemporaryDirectory() as folder:
        payload = vars(asked) | {
            "result": str(Path(folder) / "result.json"),
            "recompute": not asked.no_recompute,
            "cores": sorted(os.sched_getaffinity(0)),
        }
        words = {key: value for key, value in payload.items() if key != "part"}
        outcome = run_workers(topology, f"pipeline:{target.__name__}", words, threads=1)
        if outcome.code:
            sys.exit("\n".join(outcome.describe()))
        print(f"{asked.model}, {asked.size} px, micro-batch {asked.batch}, {asked.rounds} rounds")
        show(json.loads(Path(payload["result"]).read_text()))


if __name__ == "__main__":
    main()
