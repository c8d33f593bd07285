"""Our training update against a bare hand-written PyTorch one, on the same network and batch.

    python benchmarks/loop_overhead.py [--pairs 100] [--batch 128] [--threads 2]

ResNet-20 at 32 px. After each of our updates one bare update runs in the same process: A, B, A, B.
Ours is everything between two bare ones: infeed, gradient tree, update, meter, events. Twice: with
a batch that lies on the device, as the bare loop has it, and with images fed, cropped and mirrored
by a worker thread, which the bare loop has not.
"""

import argparse
from argparse import Namespace
from contextlib import closing
from itertools import pairwise
from time import perf_counter

import torch
import torch.nn.functional as F
from assembled import alone, parts_of, plan_of, updates_of
from interleaved import options_of, ratio_with_interval
from torch import Tensor, nn

from convoy.data.sources.pixel_source import GeneratedSource
from convoy.machine import keep_freed_memory
from convoy.planning.plan import RunPlan
from convoy.run.build import TrainingParts
from convoy.run.process import make_deterministic

WARM_UP = 3


class Block(nn.Module):
    """A basic residual block as anybody would write it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        if self.added:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return F.relu(out + x, inplace=True)


class ResNet20(nn.Module):
    """The network of the bare loop."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.blocks = nn.Sequential(*(Block(a, b, 2 if a != b else 1) for a, b in pairwise(widths)))
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x)), inplace=True))
        return self.fc(x.mean((2, 3)))


class BareLoop:
    """A hand-written training loop: nothing but what PyTorch's tutorial has."""

    def __init__(self, batch: int) -> None:
        self.network = ResNet20().to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), 0.01, momentum=0.9, weight_decay=5e-4
        )
        images = torch.randn(batch, 3, 32, 32)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.randint(10, (batch,))
        self.loss = 0.0

    def start_like(self, parts: TrainingParts) -> None:
        """The same weights and the same first batch: speed depends on values, through denormals."""
        weights = parts.network.slice.named_weights()
        with torch.no_grad():
            for name, weight in self.network.named_parameters():
                weight.copy_(weights[_our_name(name)])
        with closing(parts.trainer.micro_batches.for_updates(range(1))) as batches:
            images, self.labels = next(batches)
        self.images = images.clone()

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        self.loss += loss.item()


def _our_name(name: str) -> str:
    """`blocks.4.conv1.weight` is our `layer2.1.conv1.weight`."""
    words = name.split(".")
    if words[0] != "blocks":
        return name
    group, block = divmod(int(words[1]), 3)
    return ".".join([f"layer{group + 1}", str(block), *words[2:]])


def our_plan(data: str, options: Namespace) -> RunPlan:
    """The training of the bare loop."""
    return plan_of(
        {
            "model": "resnet20",
            "data": data,
            "num_classes": 10,
            "micro_batch_size": options.batch,
            "lr": 0.01,
            "warmup_epoch": 0.0,
            "updates": options.pairs + WARM_UP,
            "epoch": None,
            "threads": options.threads,
        }
    )


def compare(data: str, options: Namespace) -> tuple[list[float], list[float]]:
    """Seconds of our updates and of the bare ones, in turn.

    CIFAR's images are generated ones here, cropped and mirrored as those are.
    """
    source = GeneratedSource(50_000, 32, 10, 0)
    with alone(our_plan(data, options)) as context:
        parts, bare = parts_of(context, source), BareLoop(options.batch)
        bare.start_like(parts)
        return alternated(parts, bare)


def alternated(parts: TrainingParts, bare: BareLoop) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    theirs: list[float] = []
    began = perf_counter()
    for _ in updates_of(parts):
        ours.append(perf_counter() - began)
        start = perf_counter()
        bare.step()
        began = perf_counter()
        theirs.append(began - start)
    return ours[WARM_UP:], theirs[WARM_UP:]


def compare_with_itself(batch: int, pairs: int) -> tuple[list[float], list[float]]:
    """Two bare loops in turn: what the machine's noise alone looks like."""
    one, other = BareLoop(batch), BareLoop(batch)
    times: list[list[float]] = [[], []]
    for _ in range(pairs + WARM_UP):
        for loop, kept in zip((one, other), times, strict=True):
            began = perf_counter()
            loop.step()
            kept.append(perf_counter() - began)
    return times[0][WARM_UP:], times[1][WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    own = options_of(parser, {"pairs": 1, "batch": 4, "threads": 1})
    keep_freed_memory()  # as `convoy train` does
    make_deterministic(own.threads)
    middle, low, high = ratio_with_interval(*compare_with_itself(own.batch, own.pairs))
    print(f"noise: bare / bare = {middle:.3f} [{low:.3f}, {high:.3f}] over {own.pairs} pairs")
    for data, what in (("synthetic", "batch on the device"), ("cifar10", "fed by a worker")):
        ours, theirs = compare(data, own)
        middle, low, high = ratio_with_interval(ours, theirs)
        speed = own.batch / sorted(ours)[len(ours) // 2]
        print(
            f"{what}: ours / bare = {middle:.3f} [{low:.3f}, {high:.3f}] over {own.pairs} pairs, "
            f"{speed:.0f} images/s"
        )


if __name__ == "__main__":
    main()
