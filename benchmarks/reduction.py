"""Reduction of gradients over two replicas of one thread: exact or fast, after or during backward.

    python benchmarks/reduction.py [--model resnet20] [--image-size 32] [--batch 64] [--rounds 20]

Each round makes one update in every way, in a random order, in the same two processes and with the
same network; ratios are taken within a round. Two ways meet nobody: an update without reduction,
whose gradients are collected after backward or, by the same hooks, during it. Processor seconds
stand beside the wall's: on cores that others use too, a way with more threads gets more of them.
"""

import argparse
import os
import random
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from interleaved import ratio_with_interval

from convoy.assemble.network import build_network, whole
from convoy.config.schema import build_config
from convoy.engine.update import Holding, Update
from convoy.launch.memory import keep_freed_memory
from convoy.models.batch_norm import absorb
from convoy.numerics.flat import FlatWeights
from convoy.numerics.gradients import GradientTree
from convoy.optim.optimizer import Optimizer
from convoy.optim.rules import Sgd
from convoy.optim.step import Step
from convoy.parallel.exact import ExactReplicas
from convoy.parallel.peers import Peers
from convoy.parallel.pipeline import Pipeline
from convoy.parallel.replicas import Alone, FastReplicas, Meeting, Replicas
from convoy.plan.plan import plan_run

WAYS = ("exact during", "exact after", "fast during", "fast after", "alone during", "alone after")
PAIRS = [
    ("exact during", "exact after"),
    ("fast during", "fast after"),
    ("alone during", "alone after"),
    ("exact after", "fast after"),
    ("exact after", "alone after"),
    ("fast after", "alone after"),
]


def replicas_of(way: str, peers: Peers, buffer_bytes: int) -> Replicas:
    meeting = Meeting(sharded=False, buffer_bytes=buffer_bytes, overlapped="during" in way)
    if "alone" in way:
        return Alone()
    return ExactReplicas(peers, meeting) if "exact" in way else FastReplicas(peers, meeting)


def updates_of(peers: Peers, options: argparse.Namespace) -> dict[str, Update]:
    """One network and one optimizer; each way has a tree of its own."""
    words = {"model": options.model, "image_size": options.image_size, "data": "generated"}
    plan = plan_run(build_config(words))
    network = build_network(plan.network, [whole(plan.network)], 0, torch.device("cpu"))
    flat = FlatWeights(network.slice.named_weights())
    optimizer = Optimizer(flat, Sgd(plan.config.optimizer))
    updates = {}
    for way in WAYS:
        first, expected = peers.replica * options.accumulate, options.accumulate
        tree = GradientTree(flat, first, expected=expected)
        pipeline = Pipeline(network.slice, F.cross_entropy, tree.collect)
        replicas = replicas_of(way, peers, options.buffer)
        absorb_statistics = partial(absorb, network.norms)
        if way == "alone during":
            tree.watch(lambda: None)
        updates[way] = Update(pipeline, [Holding(tree, optimizer)], replicas, absorb_statistics)
    return updates


def only(way: str, updates: dict[str, Update], expected: int) -> Update:
    """The hooks of all trees hang on the same weights: let those of one way act."""
    for name, update in updates.items():
        update.holdings[0].gradients.expected = expected if name == way else None
    return updates[way]


def measure(replica: int, store: str, options: argparse.Namespace) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.sched_setaffinity(0, {replica})
    torch.set_num_threads(1)
    keep_freed_memory()
    shared, limit = dist.FileStore(store, 2), timedelta(seconds=300)
    dist.init_process_group("gloo", store=shared, rank=replica, world_size=2, timeout=limit)
    assert dist.group.WORLD is not None
    peers = Peers(dist.group.WORLD)
    updates = updates_of(peers, options)
    images = torch.randn(options.batch, 3, options.image_size, options.image_size)
    batch = (images.to(memory_format=torch.channels_last), torch.arange(options.batch) % 10)
    wall: dict[str, list[float]] = {way: [] for way in WAYS}
    processor: dict[str, list[float]] = {way: [] for way in WAYS}
    chance = random.Random(0)  # the same order in both replicas
    for _ in range(options.rounds + 2):
        for way in chance.sample(WAYS, len(WAYS)):
            update = only(way, updates, options.accumulate)
            dist.barrier()
            began, worked = perf_counter(), process_time()
            update([batch] * options.accumulate, Step(0.0))
            dist.barrier()
            wall[way].append(perf_counter() - began)
            processor[way].append(process_time() - worked)
    if replica == 0:
        print(f"{updates[WAYS[0]].holdings[0].optimizer.flat.elements:,} elements")
        tell("wall", wall)
        tell("processor", processor)
    dist.destroy_process_group()


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
    options = parser.parse_args()
    context = get_context("spawn")
    with TemporaryDirectory() as folder:
        workers = [
            context.Process(target=measure, args=(replica, f"{folder}/store", options))
            for replica in range(2)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()
