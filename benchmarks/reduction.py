"""Gradient reduction over two single-threaded replicas: exact or fast, after or during backward.

    python benchmarks/reduction.py [--model resnet20] [--image-size 32] [--batch 64] [--rounds 20]

Each round performs one update with every variant, in random order, in the same two processes and
with the same weights; ratios are computed within a round. Two variants reduce nothing: their
gradients are accumulated after backward, or by the same hooks during it. CPU seconds are printed
next to wall seconds, because on a busy machine a variant with more threads gets more CPU time.
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import perf_counter, process_time
from typing import Any

from assembled import build_parts, make_context, make_plan, make_update
from interleaved import parse_options, ratio_with_interval

from convoy.launch.supervisor import run_workers
from convoy.launch.world import World
from convoy.machine import keep_freed_memory
from convoy.parallel.control import SyncPoint
from convoy.planning.plan import RunPlan
from convoy.planning.topology import TopologyPlan
from convoy.run.process import ProcessContext, join_run

VARIANTS = ("exact during", "exact after", "fast during", "fast after", "none during", "none after")
PAIRS = [
    ("exact during", "exact after"),
    ("fast during", "fast after"),
    ("none during", "none after"),
    ("exact after", "fast after"),
    ("exact after", "none after"),
    ("fast after", "none after"),
]


def plan_for(payload: dict[str, Any], variant: str) -> RunPlan:
    return make_plan(
        {
            "model": payload["model"],
            "image_size": payload["image_size"],
            "num_classes": 10,
            "data": "synthetic",
            "threads": 1,
            "micro_batch_size": payload["batch"],
            "gradient_accumulation": payload["accumulate"],
            "replicas": 1 if "none" in variant else 2,
            "reduction": "fast" if "fast" in variant else "exact",
            "overlap_reduction": "during" in variant and "none" not in variant,
            "max_cross_replica_buffer_size": payload["buffer"],
        }
    )


def build_update(
    variant: str, context: ProcessContext, payload: dict[str, Any]
) -> Callable[[], None]:
    """Each variant has its own network with the same weights; the learning rate is 0."""
    plan = plan_for(payload, variant)
    parts = build_parts(make_context(plan) if "none" in variant else replace(context, plan=plan))
    if variant == "none during":
        for group in parts.groups:
            group.gradients.register_summed_hook(lambda: None)
    return make_update(parts, 0.0)


def measure(world: World, payload: dict[str, Any]) -> int:
    """The target of a worker process: measure one replica; rank 0 prints."""
    keep_freed_memory()
    wall: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    cpu: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    rng = random.Random(0)  # the same order in both replicas
    with join_run(world, plan_for(payload, VARIANTS[0])) as context:
        updates = {variant: build_update(variant, context, payload) for variant in VARIANTS}
        for _ in range(payload["rounds"] + 2):
            for variant in rng.sample(VARIANTS, len(VARIANTS)):
                context.control.all_gather(SyncPoint.STOP, 0)
                wall_start, cpu_start = perf_counter(), process_time()
                updates[variant]()
                context.control.all_gather(SyncPoint.STOP, 0)
                wall[variant].append(perf_counter() - wall_start)
                cpu[variant].append(process_time() - cpu_start)
    if world.rank == 0:
        print_seconds("wall", wall)
        print_seconds("CPU", cpu)
    return 0


def print_seconds(clock: str, seconds: dict[str, list[float]]) -> None:
    measured = {variant: values[2:] for variant, values in seconds.items()}  # without warm-up
    for variant, values in measured.items():
        print(f"{clock:5} {variant:14} {median(values):.4f} s")
    for first, second in PAIRS:
        ratio, low, high = ratio_with_interval(measured[first], measured[second])
        print(f"{clock:5} {first:14} / {second:12} {ratio:.3f}  [{low:.3f}, {high:.3f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--buffer", type=int, default=10 * 2**20)
    small = {"model": "resnet8", "image_size": 8, "batch": 2, "rounds": 1}
    options = parse_options(parser, small)
    topology = TopologyPlan(hosts=1, instances=1, replicas=2, stages=1)
    outcome = run_workers(topology, "reduction:measure", vars(options), threads=1)
    if outcome.code:
        sys.exit("\n".join(outcome.describe()))


if __name__ == "__main__":
    main()
