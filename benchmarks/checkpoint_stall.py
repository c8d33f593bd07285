"""Training time lost to saving a checkpoint in the background.

    python benchmarks/checkpoint_stall.py [--saves 12] [--model resnet50] [--threads 2]

Updates run without and with a save, in turn: a quiet window, a window that begins with a save and
lasts until its checkpoint is on disk and verified, a quiet window, … The loss of one save is its
window's time less what as many updates take in the quiet windows around it; it is given as a share
of a minute, for one save per minute.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from interleaved import ratio_with_interval

from convoy.assemble.feeds import training_feed
from convoy.assemble.machine import make_repeatable
from convoy.assemble.network import build_network, whole
from convoy.checkpoint.background import BackgroundSaver
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.store import Store
from convoy.config.schema import build_config
from convoy.data.feed import Hands, Wanted
from convoy.data.generated import Generated
from convoy.data.order import Place
from convoy.engine.loss import CrossEntropy
from convoy.engine.update import Holding, Update
from convoy.launch.memory import keep_freed_memory
from convoy.models.batch_norm import absorb
from convoy.numerics.flat import FlatWeights
from convoy.numerics.gradients import GradientTree
from convoy.optim.optimizer import Optimizer
from convoy.optim.rules import Sgd
from convoy.optim.step import Step
from convoy.parallel.pipeline import Pipeline
from convoy.parallel.replicas import Alone
from convoy.plan.plan import plan_run

CPU = torch.device("cpu")


class Training:
    """Updates of a network on one resident batch, and its state to save."""

    def __init__(self, model: str, batch: int) -> None:
        config = build_config(
            {"model": model, "data": "synthetic", "micro_batch_size": batch, "image_size": 64}
        )
        plan = plan_run(config)
        self.network = build_network(plan.network, [whole(plan.network)], 0, CPU)
        self.optimizer = Optimizer(
            FlatWeights(self.network.slice.named_weights()), Sgd(config.optimizer)
        )
        gradients = GradientTree(self.optimizer.flat)
        pipeline = Pipeline(self.network.slice, CrossEntropy(config.loss), gradients.collect)
        self._update = Update(
            pipeline,
            [Holding(gradients, self.optimizer)],
            Alone(),
            partial(absorb, self.network.norms),
        )
        feed = training_feed(plan, Generated(1, 64, 10, 0), CPU, Wanted())
        (self.batch,) = feed.micro_batches([Place(0, 0)], Hands(0, 1))

    def update(self) -> float:
        began = perf_counter()
        self._update([(self.batch.images, self.batch.labels)], Step(0.01))
        return perf_counter() - began

    def contents(self, update: int) -> Contents:
        tensors = {name: one.detach() for name, one in self.network.slice.named_tensors().items()}
        return Contents(tensors, self.optimizer.named_state(), state={"update": update})


def saving_window(training: Training, saver: BackgroundSaver, number: int) -> tuple[float, int]:
    """Seconds and updates from the call of a save until its checkpoint is complete."""
    told: list[int] = []
    saver._on_saved = lambda update, path, seconds: told.append(update)  # type: ignore[assignment]  # noqa: ARG005
    began = perf_counter()
    saver.save(training.contents(number), number)
    updates = 0
    while not told:
        training.update()
        updates += 1
        saver.check()
    return perf_counter() - began, updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=12)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    own = parser.parse_args()
    keep_freed_memory()  # as `convoy train` does
    make_repeatable(own.threads)
    training = Training(own.model, own.batch)
    for _ in range(3):
        training.update()
    lost: list[float] = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        saver = BackgroundSaver(Store(Path(folder)), 2, lambda *_: None)
        before = median(training.update() for _ in range(8))
        for number in range(own.saves):
            seconds, updates = saving_window(training, saver, number)
            after = median(training.update() for _ in range(8))
            lost.append(seconds - updates * (before + after) / 2)
            before = after
        saver.finish()
    middle, low, high = ratio_with_interval(lost, [60.0] * len(lost))
    size = sum(one.nbytes for part in _parts(training) for one in part.values())
    print(
        f"{own.model}, {size / 1e6:.0f} MB: one save costs {1000 * median(lost):.0f} ms of "
        f"training; at one save per minute {100 * middle:.2f} % "
        f"[{100 * low:.2f}, {100 * high:.2f}] over {own.saves} saves"
    )


def _parts(training: Training) -> list[dict[str, torch.Tensor]]:
    contents = training.contents(0)
    return [contents.model, contents.optimizer]


if __name__ == "__main__":
    main()
