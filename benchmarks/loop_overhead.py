"""convoy's training update against a plain PyTorch loop, with the same network and batch.

    python benchmarks/loop_overhead.py [--pairs 100] [--batch 128] [--threads 2]

ResNet-20 at 32 px. Updates of convoy and of the plain loop alternate in one process. The time of
convoy covers everything between two updates of the plain loop: data, gradient tree, optimizer step,
metrics, events. It is measured twice: with a batch that is already on the device, as in the plain
loop, and with images that a worker thread loads, crops and flips, which the plain loop does not do.
"""

import argparse
from argparse import Namespace
from contextlib import closing
from itertools import pairwise
from time import perf_counter

import torch
import torch.nn.functional as F
from assembled import build_parts, make_plan, run_updates, single_process
from interleaved import parse_options, ratio_with_interval
from torch import Tensor, nn

from convoy.data.sources.pixel_source import GeneratedSource
from convoy.machine import keep_freed_memory
from convoy.planning.plan import RunPlan
from convoy.run.build import TrainingParts
from convoy.run.process import make_deterministic

WARM_UP = 3


class Block(nn.Module):
    """A basic residual block as written in tutorials."""

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
    """The network of the plain loop."""

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


class PlainLoop:
    """A training loop with the steps of the PyTorch tutorial and nothing else."""

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
        """Copy weights and first batch: speed depends on values, because denormals are slow."""
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
    """`blocks.4.conv1.weight` is convoy's `layer2.1.conv1.weight`."""
    words = name.split(".")
    if words[0] != "blocks":
        return name
    group, block = divmod(int(words[1]), 3)
    return ".".join([f"layer{group + 1}", str(block), *words[2:]])


def training_plan(data: str, options: Namespace) -> RunPlan:
    """The plan of the same training as the plain loop."""
    return make_plan(
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
    """Seconds of the updates of convoy and of the plain loop, which alternate.

    The images are generated, and augmented like those of CIFAR.
    """
    source = GeneratedSource(50_000, 32, 10, 0)
    with single_process(training_plan(data, options)) as context:
        parts, plain = build_parts(context, source), PlainLoop(options.batch)
        plain.start_like(parts)
        return alternate(parts, plain)


def alternate(parts: TrainingParts, plain: PlainLoop) -> tuple[list[float], list[float]]:
    convoy_seconds: list[float] = []
    plain_seconds: list[float] = []
    start = perf_counter()
    for _ in run_updates(parts):
        middle = perf_counter()
        convoy_seconds.append(middle - start)
        plain.step()
        start = perf_counter()
        plain_seconds.append(start - middle)
    return convoy_seconds[WARM_UP:], plain_seconds[WARM_UP:]


def compare_with_itself(batch: int, pairs: int) -> tuple[list[float], list[float]]:
    """Alternate two plain loops: the noise of the machine."""
    loops = [PlainLoop(batch), PlainLoop(batch)]
    times: list[list[float]] = [[], []]
    for _ in range(pairs + WARM_UP):
        for loop, seconds in zip(loops, times, strict=True):
            start = perf_counter()
            loop.step()
            seconds.append(perf_counter() - start)
    return times[0][WARM_UP:], times[1][WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    options = parse_options(parser, {"pairs": 1, "batch": 4, "threads": 1})
    keep_freed_memory()  # as `convoy train` does
    make_deterministic(options.threads)
    ratio, low, high = ratio_with_interval(*compare_with_itself(options.batch, options.pairs))
    print(f"noise: plain / plain = {ratio:.3f} [{low:.3f}, {high:.3f}] over {options.pairs} pairs")
    for data, title in (("synthetic", "batch on the device"), ("cifar10", "loaded by a worker")):
        convoy_seconds, plain_seconds = compare(data, options)
        ratio, low, high = ratio_with_interval(convoy_seconds, plain_seconds)
        speed = options.batch / sorted(convoy_seconds)[len(convoy_seconds) // 2]
        print(
            f"{title}: convoy / plain = {ratio:.3f} [{low:.3f}, {high:.3f}] "
            f"over {options.pairs} pairs, {speed:.0f} images/s"
        )


if __name__ == "__main__":
    main()
