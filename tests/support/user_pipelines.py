"""A small network in stages for the tests of `convoy.pipeline`, in one process or in several."""

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import convoy
from convoy.parallel.collectives import PeerGroup

BATCH, FEATURES, HIDDEN, CLASSES = 16, 6, 256, 3  # activations are large enough to be offloaded
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A short training."""

    gradient_accumulation: int = 4  # on each replica
    optimizer: str = "momentum"
    network: str = "chain"
    calls: int = 2
    options: dict[str, Any] = field(default_factory=dict)  # of the pipeline
    position: int = 0  # of the infeed at the start
    inference: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a process has at the end."""

    weights: Arrays = field(repr=False)
    results: Any = field(repr=False)  # of the outfeed
    position: int  # of the infeed
    state_elements: int  # of the optimizer in this process

    def same_weights(self, other: "Outcome") -> bool:
        pairs = [(array, other.weights[name]) for name, array in self.weights.items()]
        return all(left.tobytes() == right.tobytes() for left, right in pairs)


def make_data(elements: int = 64) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    images = torch.randn(elements, BATCH, FEATURES, generator=rng)
    return images, torch.randint(0, CLASSES, (elements, BATCH), generator=rng)


class Chain(nn.Module):
    """Two stages, with batch norm and dropout."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Dropout(dropout)
        )
        self.second = nn.Linear(HIDDEN, CLASSES)

    def enter(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(images), labels

    def leave(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.second(hidden), labels

    def stages(self) -> list[Any]:
        return [self.enter, self.leave]


class Branches(nn.Module):
    """A stage, two branches, and a stage that takes the outputs of both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.left = nn.Sequential(nn.Linear(HIDDEN, 5), nn.Tanh())
        self.right = nn.Sequential(nn.Linear(HIDDEN, 7), nn.Sigmoid())
        self.last = nn.Linear(12, CLASSES)

    def enter(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.first(images)), labels

    def go_left(self, hidden: Tensor, _: Tensor) -> Tensor:
        return self.left(hidden)  # type: ignore[no-any-return]

    def go_right(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.right(hidden), labels

    def go_both(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.left(hidden), self.right(hidden), labels

    def leave(self, left: Tensor, right: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.last(torch.cat([left, right], 1)), labels

    def stages(self) -> list[Any]:
        return [self.enter, [self.go_left, self.go_right], self.leave]

    def sequential_stages(self) -> list[Any]:
        return [self.enter, self.go_both, self.leave]


def make_network(name: str) -> tuple[nn.Module, list[Any]]:
    if name == "chain":
        chain = Chain()
        return chain, chain.stages()
    branches = Branches()
    if name == "branches":
        return branches, branches.stages()
    return branches, branches.sequential_stages()


def make_optimizer(name: str, network: nn.Module) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(network.parameters(), lr=0.01)
    return torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)


def train(peers: PeerGroup | None, case: Case) -> Outcome:
    """Train in this process, which is one of `peers` if there are any."""
    del peers  # convoy finds them
    network, stages = make_network(case.network)
    torch.manual_seed(3)  # of the dropout masks
    optimizer = None if case.inference else make_optimizer(case.optimizer, network)
    infeed, outfeed = convoy.Infeed(make_data()), convoy.Outfeed()
    infeed.load_state_dict({"position": case.position})
    pipeline = convoy.pipeline(
        stages,
        infeed,
        outfeed,
        gradient_accumulation=case.gradient_accumulation,
        optimizer=optimizer,
        loss_fn=None if case.inference else F.cross_entropy,
        **case.options,
    )
    for _ in range(case.calls):
        pipeline()
    pipeline.sync_modules()
    weights = {name: item.detach().numpy().copy() for name, item in network.named_parameters()}
    results = as_arrays(outfeed.dequeue())
    infeed.close()
    return Outcome(
        weights, results, infeed.state_dict()["position"], count_state_elements(optimizer)
    )


def as_arrays(value: Any) -> Any:
    match value:
        case Tensor():
            return value.numpy().copy()
        case dict():
            return {name: as_arrays(item) for name, item in value.items()}
        case _:
            return tuple(map(as_arrays, value))


def same_arrays(left: Any, right: Any) -> bool:
    """Whether two results of an outfeed have the same structure and bits."""
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same_arrays, left, right))
    return bool(left.shape == right.shape and left.tobytes() == right.tobytes())


def count_state_elements(optimizer: torch.optim.Optimizer | None) -> int:
    """The elements of all state tensors, without counters."""
    states = optimizer.state.values() if optimizer is not None else ()
    return sum(item.numel() for state in states for item in state.values() if item.dim())


def train_plainly(network: nn.Module, updates: int, count: int, scale: float) -> list[float]:
    """The same training as a plain loop that accumulates gradients; returns the losses."""
    optimizer = make_optimizer("momentum", network)
    images, labels = make_data()
    losses = []
    for update in range(updates):
        for index in range(update * count, (update + 1) * count):
            loss = F.cross_entropy(network.second(network.first(images[index])), labels[index])  # type: ignore
            (loss * scale).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def make_pipeline(**options: Any) -> tuple[convoy.Pipeline, convoy.Outfeed, Chain]:
    network, outfeed = Chain(dropout=0), options.pop("outfeed", convoy.Outfeed())
    settings: dict[str, Any] = {
        "gradient_accumulation": 4,
        "optimizer": make_optimizer("momentum", network),
        "loss_fn": F.cross_entropy,
        "stages": network.stages(),
    }
    settings |= options
    stages = settings.pop("stages")
    return (
        convoy.pipeline(stages, convoy.Infeed(make_data()), outfeed, **settings),
        outfeed,
        network,
    )


def run_once(**options: Any) -> Any:
    pipeline, outfeed, _ = make_pipeline(**options)
    pipeline()
    return outfeed.dequeue()
