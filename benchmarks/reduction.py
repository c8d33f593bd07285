"""Reduction of gradients over two replicas of one thread: exact or fast, after or during backward.

    python benchmarks/reduction.py [--model resnet20] [--image-size 32] [--batch 64] [--rounds 20]

Each round makes one update in every way, in a random order, in the same two processes and with the
same weights; ratios are taken within a round. Two ways meet nobody: an update without reduction,
whose gradients are collected after backward or, by the same hooks, during it. Processor seconds
stand beside the wall's: on cores that others use too, a way with more threads gets more of them.
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import perf_counter, process_time
from typing import Any

from assembled import context_of, parts_of, plan_of, update_of
from interleaved import options_of, ratio_with_interval

from convoy.launch.supervisor import run_workers
from convoy.launch.world import World
from convoy.machine import keep_freed_memory
from convoy.parallel.control import SyncPoint
from convoy.planning.plan import RunPlan
from convoy.planning.topology import TopologyPlan
from convoy.run.process import ProcessContext, join_run

WAYS = ("exact during", "exact after", "fast during", "fast after", "alone during", "alone after")
PAIRS = [
    ("exact during", "exact after"),
    ("fast during", "fast after"),
    ("alone during", "alone after"),
    ("exact after", "fast after"),
    ("exact after", "alone after"),
    ("fast after", "alone after"),
]


def planned(payload: dict[str, Any], way: str) -> RunPlan:
    return plan_of(
        {
            "model": payload["model"],
            "image_size": payload["image_size"],
            "num_classes": 10,
            "data": "synthetic",
            "threads": 1,
            "micro_batch_size": payload["batch"],
            "gradient_accumulation": payload["accumulate"],
            "replicas": 1 if "alone" in way else 2,
            "reduction": "fast" if "fast" in way else "exact",
            "overlap_reduction": "during" in way and "alone" not in way,
            "max_cross_replica_buffer_size": payload["buffer"],
        }
    )


def update_by(way: str, context: ProcessContext, payload: dict[str, Any]) -> Callable[[], None]:
    """Each way has a network of its own, with the same weights; they stay as they are."""
    plan = planned(payload, way)
    parts = parts_of(context_of(plan) if "alone" in way else replace(context, plan=plan))
    if way == "alone during":
        for group in parts.groups:
            group.gradients.register_summed_hook(lambda: None)
    return update_of(parts, 0.0)


def measure(world: World, payload: dict[str, Any]) -> int:
    """One replica's part; the first one tells."""
    keep_freed_memory()
    wall: dict[str, list[float]] = {way: [] for way in WAYS}
    processor: dict[str, list[float]] = {way: [] for way in WAYS}
    chance = random.Random(0)  # the same order in both replicas
    with join_run(world, planned(payload, WAYS[0])) as context:
        updates = {way: update_by(way, context, payload) for way in WAYS}
        for _ in range(payload["rounds"] + 2):
            for way in chance.sample(WAYS, len(WAYS)):
                context.control.all_gather(SyncPoint.STOP, 0)
                began, worked = perf_counter(), process_time()
                updates[way]()
                context.control.all_gather(SyncPoint.STOP, 0)
                wall[way].append(perf_counter() - began)
                processor[way].append(process_time() - worked)
    if world.rank == 0:
        tell("wall", wall)
        tell("processor", processor)
    return 0


def tell(clock: str, seconds: dict[str, list[float]]) -> None:
    counted = {way: values[2:] for way, values in seconds.items()}  # the first two warm up
    for way, values in counted.items():
        print(f"{clock:10} {way:14} {median(values):.4f} s")
    for ours, theirs in PAIRS:
        ratio, low, high = ratio_with_interval(counted[ours], counted[theirs])
        print(f"{clock:10} {ours:14} / {theirs:12} {ratio:.3f}  [{low:.3f}, {high:.3f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--buffer", type=int, default=10 * 2**20)
    small = {"model": "resnet8", "image_size": 8, "batch": 2, "rounds": 1}
    options = options_of(parser, small)
    topology = TopologyPlan(hosts=1, instances=1, replicas=2, stages=1)
    outcome = run_workers(topology, "reduction:measure", vars(options), threads=1)
    if outcome.code:
        sys.exit("\n".join(outcome.describe()))


if __name__ == "__main__":
    main()
