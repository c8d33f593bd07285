"""A whole run in small: images of 8 × 8, a network of five layers, real pieces throughout."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn

from convoy.chance import key, permutation
from convoy.config.sections.optimizer import LossConfig, OptimizerConfig
from convoy.config.sections.training import LearningRateConfig
from convoy.data.arrival import Arrival
from convoy.data.augment import PAD_CROP_FLIP
from convoy.data.feed import Hands, Samples, TrainingFeed
from convoy.data.generated import Generated
from convoy.data.order import Order
from convoy.data.source import Ids, Labels
from convoy.data.view import Augmented
from convoy.engine.loss import CrossEntropy
from convoy.engine.outfeed import Outfeed
from convoy.engine.part import Part
from convoy.engine.trainer import Trainer
from convoy.engine.update import Holding, Update
from convoy.engine.verdict import Judge, Policy
from convoy.events import Event
from convoy.models.batch_norm import BatchNorm, absorb, forget
from convoy.models.build import build_layers
from convoy.numerics.flat import FlatWeights
from convoy.numerics.gradients import GradientTree
from convoy.numerics.loss_scale import LossScale
from convoy.numerics.traps import Traps, Watched
from convoy.numerics.types import FLOAT32
from convoy.optim.optimizer import Optimizer
from convoy.optim.rules import Sgd
from convoy.parallel.pipeline import Pipeline
from convoy.parallel.replicas import Alone
from convoy.parallel.slice import Slice
from convoy.plan.batch import BatchPlan
from convoy.plan.layers import LayerPlan
from convoy.plan.learning_rate import LearningRatePlan
from convoy.plan.loop import LoopPlan
from convoy.plan.operations import Activation, Conv, GlobalPool, Linear, Norm
from convoy.plan.rhythm import Rhythm

CPU = torch.device("cpu")
BATCH = BatchPlan(micro_batch_size=4, gradient_accumulation=3, replicas=1)
UPDATES_PER_EPOCH = 4


class Shuffled(Generated):
    """Random images with labels that do not simply count."""

    def __init__(self, samples: int, classes: int = 7) -> None:
        super().__init__(samples, image_size=8, classes=classes, seed=0)

    def labels(self, ids: Ids) -> Labels:
        return ids * ids % len(self.class_names)


def small_network(norm: str = "batch", classes: int = 7, seed: int = 0) -> Slice:
    layers = [
        LayerPlan("conv", Conv(3, 8, 3)),
        LayerPlan("norm", Norm(8, norm, groups=2, eps=1e-5, momentum=0.1)),
        LayerPlan("relu", Activation("relu")),
        LayerPlan("pool", GlobalPool()),
        LayerPlan("head", Linear(8, classes)),
    ]
    return Slice(layers, build_layers(layers, seed))


def small_plan(updates: int, reports: int = 2, stop_after: int | None = None) -> LoopPlan:
    """`reports` an epoch of four updates, a rate that falls with every update."""
    rate = LearningRateConfig(lr=0.1, lr_schedule="exponential", lr_decay=0.95)
    never = Rhythm(0, UPDATES_PER_EPOCH, updates)
    return LoopPlan(
        samples=UPDATES_PER_EPOCH * BATCH.samples_per_update + 3,
        samples_per_update=BATCH.samples_per_update,
        micro_batches=BATCH.gradient_accumulation,
        updates_per_epoch=UPDATES_PER_EPOCH,
        updates=updates,
        stop_after=stop_after,
        learning_rate=LearningRatePlan(rate, UPDATES_PER_EPOCH, updates),
        reports=Rhythm(reports, UPDATES_PER_EPOCH, updates),
        checkpoints=never,
        validations=never,
    )


@dataclass
class SmallRun:
    """A trainer over real pieces, and the events it told."""

    trainer: Trainer
    network: Slice
    events: list[Event] = field(default_factory=list)

    def on(self, kind: type[Event], update: int, act: Callable[[], object]) -> None:
        """Do something when the event of an update comes."""

        def listen(event: Event) -> None:
            if isinstance(event, kind) and event.update == update:
                act()

        self.trainer.outfeed.subscribe(listen)

    def told(self, kind: type[Event]) -> list[int]:
        """The updates of all events of a kind."""
        return [event.update for event in self.events if isinstance(event, kind)]

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: one.detach().clone() for name, one in self.network.named_tensors().items()}


def small_run(
    plan: LoopPlan,
    norm: str = "batch",
    hands: Hands | None = None,
    policy: Policy | None = None,
) -> SmallRun:
    network = small_network(norm)
    network.moment.micros = range(plan.micro_batches)
    optimizer = Optimizer(FlatWeights(network.named_weights()), Sgd(OptimizerConfig()))
    gradients = GradientTree(optimizer.flat)
    pipeline = Pipeline(network, CrossEntropy(LossConfig()), gradients.collect)
    norms = [one for one in network.modules() if isinstance(one, BatchNorm)]
    layers = [Watched(*one, network.moment) for one in enumerate(network.layers.values())]
    traps = Traps(list(network.layers), layers, [(gradients, FLOAT32)])
    judge = Judge(None, LossScale(plan.loss_scale), policy, traps=traps)
    holdings, statistics = [Holding(gradients, optimizer)], (partial(absorb, norms),)
    update = Update(pipeline, holdings, Alone(), *statistics, partial(forget, norms), judge)
    outfeed = Outfeed()
    feed, part = small_feed(plan.samples), Part.whole(plan.micro_batches)
    trainer = Trainer(plan, feed, hands or Hands(0, 1), update, outfeed, part)
    run = SmallRun(trainer, network)
    outfeed.subscribe(run.events.append)
    return run


def small_feed(samples: int) -> TrainingFeed:
    source = Shuffled(samples)
    arrival = Arrival(source.normalization, "host", CPU)
    view = Augmented(source, PAD_CROP_FLIP, seed=3)
    return TrainingFeed(
        Samples(view, source.labels, samples), Order(samples, BATCH, seed=3), arrival
    )


@dataclass(frozen=True)
class Plain:
    """What a bare torch loop over the same samples comes to."""

    losses: list[float]  # of each micro-batch
    right: list[int]
    weights: dict[str, torch.Tensor]


def plain_training(plan: LoopPlan) -> Plain:
    """The small run again, with torch alone: group norm, autograd's sums, torch's optimizer."""
    start = small_network("group").named_tensors()
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.GroupNorm(2, 8, eps=1e-5),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 7),
    )
    network.load_state_dict(dict(zip(network.state_dict(), start.values(), strict=True)))
    decay, rest = {"weight_decay": 5e-4}, {"weight_decay": 0.0}
    groups = [{"params": [p], **(decay if p.dim() > 1 else rest)} for p in network.parameters()]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    losses, right = [], []
    for update in range(plan.updates):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.95**update
        optimizer.zero_grad()
        for micro in range(plan.micro_batches):
            images, labels = plain_batch(plan.samples, update, micro)
            logits = network(images)
            loss = nn.functional.cross_entropy(logits, labels)
            (loss / plan.micro_batches).backward()
            losses.append(loss.item())
            right.append(int((logits.argmax(1) == labels).sum()))
        optimizer.step()
    named = dict(zip(start, network.state_dict().values(), strict=True))
    return Plain(losses, right, named)


def plain_batch(samples: int, update: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One micro-batch, counted out by hand from the order of the epoch."""
    source, epoch = Shuffled(samples), update // UPDATES_PER_EPOCH
    start = (update % UPDATES_PER_EPOCH * 3 + micro) * 4
    ids = permutation(key(3, "order", epoch), samples)[start : start + 4]
    pixels = PAD_CROP_FLIP(source.pixels(ids), ids, seed=3, epoch=epoch)
    values = source.normalization
    images = (pixels / 255.0 - np.array(values.mean)) / np.array(values.deviation)
    return torch.from_numpy(images).float().permute(0, 3, 1, 2), torch.from_numpy(
        source.labels(ids)
    )
