"""Loops with `convoy.DistributedOptimizer` for its tests, in one process or in several."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

import convoy
from convoy.parallel.collectives import PeerGroup
from support.user_pipelines import Arrays, Chain, count_state_elements, make_data, make_optimizer


@dataclass(frozen=True)
class Training:
    """A loop of the user's own; `micro_batches` over all replicas."""

    micro_batches: int = 4
    updates: int = 3
    optimizer: str = "momentum"
    options: dict[str, Any] = field(default_factory=dict)


def run(peers: PeerGroup | None, case: Training) -> tuple[Arrays, int]:
    """The weights, and the number of elements of optimizer state in this process."""
    replica, replicas = (peers.replica, peers.replicas) if peers else (0, 1)
    network = Chain(dropout=0)
    with torch.no_grad():  # the first replica decides on the initial weights
        for weight in network.parameters():
            weight.add_(replica)
    count = case.micro_batches // replicas
    wrapped = make_optimizer(case.optimizer, network)
    optimizer = convoy.DistributedOptimizer(wrapped, gradient_accumulation=count, **case.options)
    images, labels = make_data()
    for update in range(case.updates):
        first = update * case.micro_batches + replica * count
        for index in range(first, first + count):
            logits = network.second(network.first(images[index]))
            F.cross_entropy(logits, labels[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert optimizer.updates == case.updates
    weights = {name: item.detach().numpy().copy() for name, item in network.named_parameters()}
    return weights, count_state_elements(wrapped)


def same(left: Arrays, right: Arrays) -> bool:
    return all(left[name].tobytes() == right[name].tobytes() for name in {*left, *right})


def run_two_optimizers(peers: PeerGroup | None, case: object) -> None:
    """Use an optimizer after another one took its parameters."""
    del peers, case
    layer = torch.nn.Linear(2, 1)
    first, _ = (
        convoy.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=1.0), shard_optimizer=True
        )
        for _ in range(2)
    )
    layer(torch.ones(1, 2)).sum().backward()
    first.step()


def run_without_optimizer(peers: PeerGroup | None, case: object) -> None:
    del peers
    convoy.DistributedOptimizer(case)  # type: ignore[arg-type]
