"""Replicas in worker processes; a pool trains one case after the other."""

import dataclasses
import multiprocessing
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from convoy.checkpoint.format import weights_sha256
from convoy.config.sections.training import OptimizerConfig
from convoy.engine.update import ParameterGroup, Update
from convoy.layers.norms import BatchNorm, PendingStatistics
from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import ACCUMULATOR_DTYPES, GradientTree, make_reduction
from convoy.numerics.precision import DtypePolicy
from convoy.optim.optimizer import MmapStorage, Optimizer, OptimizerShard, StateStorage
from convoy.optim.update_rules import StepContext, make_update_rule
from convoy.parallel.collectives import Message, PeerGroup, PendingWorks, Shards
from convoy.parallel.replicas import (
    ExactReplicas,
    FastReplicas,
    ReduceOptions,
    Replicas,
    row_gatherer,
    shard_gatherer,
)
from support.networks import SingleStage, build_slice, images_and_labels, small_layers

SECONDS = 300  # timeout, long enough for a busy machine
RATES = [0.02, 0.1, 0.08, 0.05, 0.01]
T = TypeVar("T")
Arrays = dict[str, npt.NDArray[np.float32]]

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["convoy.run.fine_tuning", "convoy.parallel.replicas"])


@dataclass(frozen=True)
class Case:
    """A small training; `micro_batches` is the number per update over all replicas."""

    micro_batches: int
    fast: bool = False
    sharded: bool = False
    offload: Path | None = None
    buffer_bytes: int = 1 << 20
    updates: range = range(len(RATES))
    start: "Outcome | None" = None
    optimizer: str = "sgd"
    overlapped: bool = True
    accumulator: str = "auto"
    reduction: str = "auto"


@dataclass(frozen=True)
class Outcome:
    """The weights and state of a replica at the end."""

    sha256: str
    tensors: Arrays = field(repr=False)
    state: Arrays = field(repr=False)
    state_elements: int  # stored by this replica
    early_messages: int = 0  # started during a backward pass


class CountingPeerGroup(PeerGroup):
    """A peer group that counts messages started during a backward pass."""

    def __init__(self, peers: PeerGroup) -> None:
        super().__init__(peers.group)
        self.early_messages = 0

    def batch_isend_irecv(
        self, sent: Iterable[Message], received: Iterable[Message], tag: int = 0
    ) -> PendingWorks:
        self.early_messages += in_backward()
        return super().batch_isend_irecv(sent, received, tag)

    def all_reduce(self, vector: Tensor) -> PendingWorks:
        self.early_messages += in_backward()
        return super().all_reduce(vector)


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def replicas_of(peers: PeerGroup | None, case: "Case | Sum | Shuffled") -> Replicas:
    if peers is None:
        return Replicas()
    options = ReduceOptions(case.sharded, case.buffer_bytes, case.overlapped)
    return FastReplicas(peers, options) if case.fast else ExactReplicas(peers, options)


def train(peers: PeerGroup | None, case: Case) -> Outcome:
    """Train a resnet8 with batch norm, from scratch or from the outcome of another training."""
    counting = CountingPeerGroup(peers) if peers else None
    replica, count = (peers.replica, peers.replicas) if peers else (0, 1)
    accumulated = case.micro_batches // count
    network = build_slice(small_layers()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    flat = FlatParameters(network.named_weights())
    replicas = replicas_of(counting, case)
    storage: StateStorage = MmapStorage(case.offload) if case.offload else StateStorage()
    config = OptimizerConfig(optimizer=case.optimizer)
    rule = make_update_rule(
        config, 4 * case.micro_batches, [weight for weight in flat.weights if "bn" not in weight]
    )
    rows = row_gatherer(replicas, Shards(flat.numel, count))
    optimizer = Optimizer(
        flat,
        rule,
        OptimizerShard(
            replicas.shard_range(flat.numel), rows, shard_gatherer(replicas, flat.numel)
        ),
        storage,
    )
    policy = DtypePolicy(accumulator=ACCUMULATOR_DTYPES[case.accumulator], reduction=case.reduction)
    reduction = make_reduction(policy, case.micro_batches)
    tree = GradientTree(
        flat, replica * accumulated, policy.accumulator_dtype, accumulated, reduction
    )
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    pipeline = SingleStage(network, F.cross_entropy, tree.collect)
    update = Update(pipeline, [ParameterGroup(tree, optimizer)], replicas, PendingStatistics(norms))
    if case.start:
        _load(case.start, network.named_tensors(), optimizer)
    for number in case.updates:
        seeds = range(replica * accumulated, (replica + 1) * accumulated)
        update(
            (images_and_labels(4, 8, 100 * number + seed) for seed in seeds),
            StepContext(RATES[number], number, number),
        )
    outcome = _outcome(network.named_tensors(), optimizer)
    return dataclasses.replace(outcome, early_messages=counting.early_messages if counting else 0)


@torch.no_grad()
def _load(start: Outcome, tensors: dict[str, Tensor], optimizer: Optimizer) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(torch.from_numpy(start.tensors[name]))
    optimizer.load_state({name: torch.from_numpy(item) for name, item in start.state.items()})


def _outcome(named: dict[str, Tensor], optimizer: Optimizer) -> Outcome:
    tensors = {name: tensor.detach() for name, tensor in named.items()}
    state = optimizer.named_state()
    elements = sum(len(vector) for vector in optimizer.slots.values())
    return Outcome(weights_sha256(tensors), _arrays(tensors), _arrays(state), elements)


def _arrays(tensors: dict[str, Tensor]) -> Arrays:
    return {name: item.contiguous().numpy().copy() for name, item in tensors.items()}


@dataclass(frozen=True)
class Sum:
    """The reduction of generated gradients of a single weight."""

    elements: int
    accumulated: int
    fast: bool = False
    sharded: bool = False
    buffer_bytes: int = 1 << 20
    overlapped: bool = True
    accumulator: str = "auto"
    reduction: str = "auto"
    constant: float | None = None  # the value of all gradients


def leaf(number: int, elements: int) -> Tensor:
    rng = torch.Generator().manual_seed(number)
    return torch.randn(elements, generator=rng) * 10 ** (number % 5 - 2)


def reduce_twice(peers: PeerGroup | None, case: Sum) -> tuple[range, list[float]]:
    """The shard of this replica and its gradient in the second of two updates."""
    replica, count = (peers.replica, peers.replicas) if peers else (0, 1)
    weight = nn.Parameter(torch.zeros(case.elements))
    policy = DtypePolicy(accumulator=ACCUMULATOR_DTYPES[case.accumulator], reduction=case.reduction)
    reduction = make_reduction(policy, case.accumulated * count)
    flat, first = FlatParameters({"weight": weight}), replica * case.accumulated
    tree = GradientTree(flat, first, policy.accumulator_dtype, case.accumulated, reduction)
    replicas = replicas_of(peers, case)
    replicas.overlap_with_backward(tree)  # no effect: there is no backward pass
    mean = torch.empty(0)
    for seed in (1000, 0):
        tree.clear()
        for number in range(tree.first_leaf, tree.first_leaf + case.accumulated):
            samples = leaf(seed + number, case.elements)
            weight.grad = samples if case.constant is None else samples.fill_(case.constant)
            tree.collect()
        mean = replicas.reduce(tree)
    return replicas.shard_range(tree.flat.numel), mean.tolist()


@dataclass(frozen=True)
class Shuffled:
    """Several weights and trees whose gradients arrive in random order."""

    accumulated: int
    trees: int = 1
    same_order: bool = False  # in all replicas
    fast: bool = False
    sharded: bool = False
    buffer_bytes: int = 2000
    overlapped: bool = True


def reduce_shuffled(peers: PeerGroup | None, case: Shuffled) -> list[tuple[range, list[float]]]:
    """The shard of this replica and its mean gradient, for each tree."""
    replica = peers.replica if peers else 0
    replicas = replicas_of(peers, case)
    first = replica * case.accumulated
    trees = []
    for _ in range(case.trees):
        weights = {str(item): nn.Parameter(torch.zeros(100 + item, 3)) for item in range(7)}
        tree = GradientTree(FlatParameters(weights), first, expected_leaves=case.accumulated)
        replicas.overlap_with_backward(tree)
        trees.append(tree)
    for number in range(case.accumulated):
        rng = random.Random(0 if case.same_order else replica)
        for index, tree in enumerate(trees):
            seed = 100 * index + first + number
            for name, weight in rng.sample(sorted(tree.flat.weights.items()), 7):
                gradient = leaf(10 * seed + int(name), weight.numel()).view_as(weight)
                (weight * gradient).sum().backward()  # type: ignore[no-untyped-call]
        for tree in reversed(trees):
            tree.collect()
    shard = replicas.shard_range(trees[0].flat.numel)
    return [(shard, replicas.reduce(tree).tolist()) for tree in trees]


def compare_weights(peers: PeerGroup, changed: tuple[int, ...]) -> str:
    """Compare the weights of all replicas; one bit differs in the changed ones."""
    network = build_slice(small_layers())
    if peers.replica in changed:
        weight = network.named_weights()["fc.weight"].detach()
        weight.view(torch.int32)[3, 5] ^= 1
    tensors = {name: tensor.detach() for name, tensor in network.named_tensors().items()}
    replicas = ExactReplicas(peers, ReduceOptions(sharded=False, buffer_bytes=1 << 20))
    replicas.check_weights_equal(lambda: bytes.fromhex(weights_sha256(tensors)), update=100)
    return "agreed"


class Failed(Exception):
    """The type and message of an error in a replica."""


class ReplicaPool:
    """Worker processes, one per replica."""

    def __init__(self, replicas: int, scratch: Path) -> None:
        self.replicas = replicas
        self._pipes: list[Connection[Any, Any]] = []
        self._processes = []
        for replica in range(replicas):
            ours, theirs = _CONTEXT.Pipe()
            rendezvous = (replica, replicas, scratch / "store")
            process = _CONTEXT.Process(target=_work, args=(rendezvous, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[[PeerGroup, Any], T], case: object) -> list[T | Failed]:
        """Call a function in every process and return all results and failures."""
        for pipe in self._pipes:
            pipe.send((function, case))
        results = []
        for replica, pipe in enumerate(self._pipes):
            if not pipe.poll(SECONDS):
                raise TimeoutError(f"no result from replica {replica} within {SECONDS} s")
            results.append(pipe.recv())
        return results

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            process.kill()
            process.join(5)
            process.close()


@contextmanager
def replica_pool(replicas: int, scratch: Path) -> Iterator[ReplicaPool]:
    pool = ReplicaPool(replicas, scratch)
    try:
        yield pool
    finally:
        pool.close()


def unwrap(results: list[T | Failed]) -> list[T]:
    """The results of a call that succeeded in every process."""
    failed = [result for result in results if isinstance(result, Failed)]
    assert not failed, failed
    return [result for result in results if not isinstance(result, Failed)]


def joined(parts: list[tuple[range, list[float]]]) -> list[float]:
    return list(chain.from_iterable(values for _, values in parts))


def _work(rendezvous: tuple[int, int, Path], pipe: "Connection[Any, Any]") -> None:
    replica, replicas, store = rendezvous
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    limit = timedelta(seconds=SECONDS)
    shared = dist.FileStore(str(store), replicas)
    dist.init_process_group("gloo", store=shared, rank=replica, world_size=replicas, timeout=limit)
    assert dist.group.WORLD is not None
    peers = PeerGroup(dist.group.WORLD)
    while True:
        try:
            function, case = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send(function(peers, case))
        except Exception as error:
            pipe.send(Failed(type(error).__name__, str(error)))
    dist.destroy_process_group()
