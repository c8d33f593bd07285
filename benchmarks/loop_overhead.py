"""Our training update against a bare hand-written PyTorch one, on the same network and batch.

    python benchmarks/loop_overhead.py [--pairs 100] [--batch 128] [--threads 2]

ResNet-20 at 32 px. After each of our updates one bare update runs in the same process: A, B, A, B.
Ours is everything between two bare ones: infeed, gradient tree, update, meter, events. Twice: with
a batch that lies on the device, as the bare loop has it, and with images fed, cropped and mirrored
by a worker thread, which the bare loop has not.
"""

import argparse
from functools import partial
from itertools import pairwise
from time import perf_counter

import torch
import torch.nn.functional as F
from interleaved import ratio_with_interval
from torch import Tensor, nn

from convoy.assemble.feeds import hands_of, training_feed
from convoy.assemble.machine import make_repeatable
from convoy.assemble.network import build_network, whole
from convoy.config.schema import build_config
from convoy.data.augment import PAD_CROP_FLIP
from convoy.data.feed import Hands, Wanted
from convoy.data.generated import Generated
from convoy.data.order import Place
from convoy.engine.loss import CrossEntropy
from convoy.engine.outfeed import Outfeed
from convoy.engine.part import Part
from convoy.engine.stopping import StopRequest
from convoy.engine.trainer import Trainer
from convoy.engine.update import Holding, Update
from convoy.events import Event, Updated
from convoy.launch.memory import keep_freed_memory
from convoy.models.batch_norm import absorb
from convoy.numerics.flat import FlatWeights
from convoy.numerics.gradients import GradientTree
from convoy.optim.optimizer import Optimizer
from convoy.optim.rules import Sgd
from convoy.parallel.pipeline import Pipeline
from convoy.parallel.replicas import Alone
from convoy.plan.plan import plan_run

CPU = torch.device("cpu")


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

    def start_like(self, trainer: Trainer) -> None:
        """The same weights and the same first batch: speed depends on values, through denormals."""
        weights = trainer.update.pipeline.stage.named_weights()
        with torch.no_grad():
            for name, weight in self.network.named_parameters():
                weight.copy_(weights[_our_name(name)])
        (batch,) = trainer.feed.micro_batches([Place(0, 0)], Hands(0, 1))
        self.images, self.labels = batch.images.clone(), batch.labels

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


def our_trainer(data: str, batch: int, updates: int) -> Trainer:
    """A run as `convoy train` builds it, without folder and listeners."""
    values = {"model": "resnet20", "data": data, "micro_batch_size": batch, "lr": 0.01}
    config = build_config(
        values | {"samples": batch * 100, "updates": updates, "epoch": None, "num_classes": 10}
    )
    plan = plan_run(config)
    network = build_network(plan.network, [whole(plan.network)], 0, CPU)
    optimizer = Optimizer(FlatWeights(network.slice.named_weights()), Sgd(config.optimizer))
    gradients = GradientTree(optimizer.flat)
    pipeline = Pipeline(network.slice, CrossEntropy(config.loss), gradients.collect)
    update = Update(
        pipeline, [Holding(gradients, optimizer)], Alone(), partial(absorb, network.norms)
    )
    feed = training_feed(plan, Generated(batch * 100, 32, 10, 0), CPU, Wanted())
    if data == "generated":
        feed.augmentation = PAD_CROP_FLIP
    part = Part.whole(plan.loop.micro_batches)
    return Trainer(plan.loop, feed, hands_of(config), update, Outfeed(), part)


def compare(data: str, batch: int, pairs: int) -> tuple[list[float], list[float]]:
    """Seconds of our updates and of the bare ones, in turn."""
    trainer, bare = our_trainer(data, batch, pairs + 3), BareLoop(batch)
    bare.start_like(trainer)
    ours: list[float] = []
    theirs: list[float] = []
    began = perf_counter()

    def alternate(event: Event) -> None:
        nonlocal began
        if not isinstance(event, Updated):
            return
        ours.append(perf_counter() - began)
        start = perf_counter()
        bare.step()
        began = perf_counter()
        theirs.append(began - start)

    trainer.outfeed.subscribe(alternate)
    trainer.run(0, StopRequest())
    return ours[3:], theirs[3:]  # the first ones warm up


def compare_with_itself(batch: int, pairs: int) -> tuple[list[float], list[float]]:
    """Two bare loops in turn: what the machine's noise alone looks like."""
    one, other = BareLoop(batch), BareLoop(batch)
    times: list[list[float]] = [[], []]
    for _ in range(pairs + 3):
        for loop, kept in zip((one, other), times, strict=True):
            began = perf_counter()
            loop.step()
            kept.append(perf_counter() - began)
    return times[0][3:], times[1][3:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    own = parser.parse_args()
    keep_freed_memory()  # as `convoy train` does
    make_repeatable(own.threads)
    middle, low, high = ratio_with_interval(*compare_with_itself(own.batch, own.pairs))
    print(f"noise: bare / bare = {middle:.3f} [{low:.3f}, {high:.3f}] over {own.pairs} pairs")
    for data, what in (("synthetic", "batch on the device"), ("generated", "fed by a worker")):
        ours, theirs = compare(data, own.batch, own.pairs)
        middle, low, high = ratio_with_interval(ours, theirs)
        speed = own.batch / sorted(ours)[len(ours) // 2]
        print(
            f"{what}: ours / bare = {middle:.3f} [{low:.3f}, {high:.3f}] over {own.pairs} pairs, "
            f"{speed:.0f} images/s"
        )


if __name__ == "__main__":
    main()
