"""Efficiency of two pipeline stages and of two replicas on two cores.

    python benchmarks/pipeline.py stages   [--model resnet20] [--batch 32] [--rounds 20]
    python benchmarks/pipeline.py replicas [--model resnet20] [--batch 64] [--rounds 20]

`stages`: two single-threaded stages, 16 micro-batches. In each round, both stages measure their own
forward and backward passes at the same time; then each schedule performs an update. The efficiency
is the time of the ideal schedule with these stage times ÷ the measured time.

`replicas`: two single-threaded replicas against one process with two threads and the same samples
per update, and against torch's DistributedDataParallel, alternating. Ratios are of images/s.
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
from assembled import build_parts, make_context, make_plan, make_update
from interleaved import parse_options, ratio_with_interval
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
from convoy.planning.schedules import SCHEDULES
from convoy.planning.stages import stage_boundary
from convoy.planning.topology import TopologyPlan
from convoy.run.build import TrainingParts, build_training_network
from convoy.run.process import ProcessContext, join_run, make_deterministic

MICRO_BATCHES = 16
COMPARED_SCHEDULES = ("grouped", "interleaved")
PASSES = 5


def plan_for(payload: dict[str, Any], **options: Any) -> RunPlan:
    return make_plan(
        {
            "model": payload["model"],
            "data": "synthetic",
            "image_size": payload["size"],
            "num_classes": 10,
            "threads": 1,
            **options,
        }
    )


# -- stages ------------------------------------------------------------------------------------


class StageTimer:
    """Times a stage without its neighbors, on random inputs and gradients."""

    def __init__(self, parts: TrainingParts) -> None:
        self.parts = parts
        context, plan = parts.context, parts.context.plan
        samples = plan.batch.micro_batch_size
        boundary = stage_boundary(plan.network, context.stages[0], samples)
        self.is_first, self.is_last = context.needed_inputs.images, context.needed_inputs.labels
        self.inputs = [_channels_last(torch.randn(size)) for size in boundary.incoming]
        self.output_gradients = [_channels_last(torch.randn(size)) for size in boundary.outgoing]
        self.labels = torch.randint(10, (samples,))
        self.loss = CrossEntropy(plan.config.loss)

    def times(self) -> tuple[float, float]:
        """Median seconds of a forward pass, and of a backward pass with gradient accumulation."""
        pairs = [self._pass() for _ in range(PASSES)]
        PendingStatistics(self.parts.network.norms).discard()
        for group in self.parts.groups:
            group.gradients.clear()
        return median(forward for forward, _ in pairs), median(backward for _, backward in pairs)

    def _pass(self) -> tuple[float, float]:
        inputs = [tensor.clone().requires_grad_(not self.is_first) for tensor in self.inputs]
        start = perf_counter()
        outputs = self.parts.network.stage_modules[0](*inputs)
        loss = self.loss(outputs[0], self.labels) if self.is_last else None
        middle = perf_counter()
        if loss is not None:
            loss.backward()
        else:
            torch.autograd.backward(outputs, self.output_gradients)
        collect_gradients(self.parts.groups)
        return middle - start, perf_counter() - middle


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def time_stages(world: World, payload: dict[str, Any]) -> int:
    """The target of a worker process: measure one stage; rank 0 writes the results of all."""
    keep_freed_memory()
    plans = {
        name: plan_for(
            payload,
            micro_batch_size=payload["batch"],
            shards=2,
            gradient_accumulation=MICRO_BATCHES,
            pipeline_schedule=name,
            enable_recompute=payload["recompute"],
        )
        for name in COMPARED_SCHEDULES
    }
    with join_run(world, plans["grouped"]) as context:
        runs = {name: build_parts(replace(context, plan=plan)) for name, plan in plans.items()}
        rows = [measure_round(context, runs) for _ in range(payload["rounds"] + 2)][2:]
        results = context.control.all_gather_tensor(
            SyncPoint.CLOSE, 0, torch.tensor(rows, dtype=torch.float64)
        )
    if world.rank == 0:
        Path(payload["result"]).write_text(json.dumps([result.tolist() for result in results]))
    return 0


def measure_round(context: ProcessContext, runs: dict[str, TrainingParts]) -> list[float]:
    """Seconds of forward, backward, and an update with each schedule and a learning rate of 0."""
    timer = StageTimer(runs["grouped"])
    runs["grouped"].network.slice.train()
    context.control.all_gather(SyncPoint.STOP, 0)
    row = [*timer.times()]
    for run in runs.values():
        context.control.all_gather(SyncPoint.STOP, 0)
        update, start = make_update(run, 0.0), perf_counter()
        update()
        context.control.all_gather(SyncPoint.STOP, 0)
        row.append(perf_counter() - start)
    return row


def print_stages(results: list[list[list[float]]]) -> None:
    forward, backward = (
        tuple(median(row[column] for row in stage) for stage in results) for column in (0, 1)
    )
    print(f"stage times: forward {_ms(forward)}, backward {_ms(backward)} (median)")
    for column, name in enumerate(COMPARED_SCHEDULES, start=2):
        ideal, measured = [], []
        for first, second in zip(*results, strict=True):
            ideal.append(_ideal_seconds(name, (first, second)))
            measured.append(max(first[column], second[column]))
        value, low, high = ratio_with_interval(ideal, measured)
        print(f"{name}: efficiency {value:.3f} [{low:.3f}, {high:.3f}], {median(measured):.3f} s")


def _ideal_seconds(name: str, stages: Sequence[Sequence[float]]) -> float:
    """Seconds of an update without overhead, from the forward and backward time of each stage."""

    def seconds(action: Action, stage: int) -> float:
        return stages[stage][0 if isinstance(action, Forward) else 1]

    orders = SCHEDULES[name].orders(len(stages), MICRO_BATCHES)
    rows = enumerate(zip(orders, start_times(orders, seconds), strict=True))
    return max(starts[-1] + seconds(order[-1], stage) for stage, (order, starts) in rows)


def _ms(times: tuple[float, ...]) -> str:
    return " / ".join(f"{1000 * seconds:.1f} ms" for seconds in times)


# -- replicas ----------------------------------------------------------------------------------


def time_replicas(world: World, payload: dict[str, Any]) -> int:
    """The target of a worker process: ranks 0 and 1 are replicas, rank 2 has two threads."""
    keep_freed_memory()
    topology = TopologyPlan(hosts=1, instances=1, replicas=3, stages=1)
    world_group = init_process_groups(
        world.rank, world.world_size, topology, Rendezvous(world.rendezvous, True)
    ).world.process_group
    assert world_group is not None
    pair_group = dist.new_group([0, 1])
    cores = sorted(payload["cores"])
    if world.rank == 2:
        os.sched_setaffinity(0, cores)
        steps = {"single process": single_process_step(payload)}
        make_deterministic(2)
    else:
        assert isinstance(pair_group, dist.ProcessGroup)
        os.sched_setaffinity(0, {cores[world.rank % len(cores)]})
        steps = {
            "replicas": replica_step(payload, world.rank, pair_group),
            "ddp": ddp_step(payload, pair_group),
        }
        make_deterministic(1)
    rows = [alternate(steps, world_group) for _ in range(payload["rounds"] + 2)][2:]
    results = [torch.zeros(len(rows), 3, dtype=torch.float64) for _ in range(3)]
    dist.all_gather(results, torch.tensor(rows, dtype=torch.float64), group=world_group)
    if world.rank == 0:
        Path(payload["result"]).write_text(json.dumps([result.tolist() for result in results]))
    return 0


def alternate(steps: dict[str, Callable[[], None]], world_group: dist.ProcessGroup) -> list[float]:
    """Seconds of one step of each kind; this process waits during the steps of other processes."""
    row = []
    for name in ("replicas", "single process", "ddp"):
        dist.barrier(group=world_group)
        start = perf_counter()
        if name in steps:
            steps[name]()
        row.append(perf_counter() - start)
    return row


def single_process_step(payload: dict[str, Any]) -> Callable[[], None]:
    plan = plan_for(payload, micro_batch_size=2 * payload["batch"])
    return make_update(build_parts(make_context(plan)))


def replica_step(
    payload: dict[str, Any], rank: int, group: dist.ProcessGroup
) -> Callable[[], None]:
    plan = plan_for(payload, micro_batch_size=payload["batch"], replicas=2)
    pipeline = RankGroup((rank,), 0, None)
    data_parallel = RankGroup((0, 1), rank, group)
    groups = replace(ProcessGroups.single_process(), pipeline=pipeline, data_parallel=data_parallel)
    return make_update(build_parts(make_context(plan, rank, groups)))


def ddp_step(payload: dict[str, Any], group: dist.ProcessGroup) -> Callable[[], None]:
    """The same network in DistributedDataParallel with torch's SGD."""
    plan = plan_for(payload, micro_batch_size=payload["batch"])
    network = build_training_network(make_context(plan))
    ddp = DistributedDataParallel(network.slice, process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    size = (payload["batch"], 3, payload["size"], payload["size"])
    images, labels = _channels_last(torch.randn(size)), torch.randint(10, size[:1])

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(ddp(images)[0], labels).backward()
        optimizer.step()
        PendingStatistics(network.norms).discard()

    return step


def print_replicas(results: list[list[list[float]]]) -> None:
    replicas = [max(a[0], b[0]) for a, b in zip(results[0], results[1], strict=True)]
    ddp = [max(a[2], b[2]) for a, b in zip(results[0], results[1], strict=True)]
    single = [row[1] for row in results[2]]
    for text, reference, seconds in (
        ("two replicas against one process with two threads", single, replicas),
        ("torch's DDP against one process with two threads", single, ddp),
        ("two replicas against torch's DDP", ddp, replicas),
    ):
        ratio, low, high = ratio_with_interval(reference, seconds)
        print(f"{text}: {ratio:.3f} × its images/s [{low:.3f}, {high:.3f}]")
    print(
        f"seconds per update: replicas {median(replicas):.3f}, "
        f"one process {median(single):.3f}, DDP {median(ddp):.3f}"
    )


# -- main --------------------------------------------------------------------------------------


# Number of processes, target of the workers, printer of their results.
MODES = {"stages": (2, time_stages, print_stages), "replicas": (3, time_replicas, print_replicas)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--no-recompute", action="store_true")
    options = parse_options(parser, {"model": "resnet8", "batch": 2, "size": 8, "rounds": 1})
    processes, target, print_results = MODES[options.mode]
    topology = TopologyPlan(hosts=1, instances=1, replicas=1, stages=processes)
    with TemporaryDirectory() as folder:
        payload = vars(options) | {
            "result": str(Path(folder) / "result.json"),
            "recompute": not options.no_recompute,
            "cores": sorted(os.sched_getaffinity(0)),
        }
        del payload["mode"]
        outcome = run_workers(topology, f"pipeline:{target.__name__}", payload, threads=1)
        if outcome.code:
            sys.exit("\n".join(outcome.describe()))
        print(
            f"{options.model}, {options.size} px, micro-batch {options.batch}, "
            f"{options.rounds} rounds"
        )
        print_results(json.loads(Path(payload["result"]).read_text()))


if __name__ == "__main__":
    main()
