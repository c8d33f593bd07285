"""A small training run: 8 × 8 images and a network of five layers."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from convoy.config.sections.training import LearningRateConfig, LossConfig, OptimizerConfig
from convoy.data.augment import PAD_CROP_FLIP
from convoy.data.loader import DeviceTransfer, LoaderOptions, SampleOrder, TrainingFeed
from convoy.data.source import Ids, Labels
from convoy.data.sources.pixel_source import GeneratedSource, PixelView
from convoy.engine.step_guard import NonFinitePolicy, StepGuard
from convoy.engine.trainer import Trainer
from convoy.engine.update import CrossEntropy, ParameterGroup, Update, UpdateBatches, UpdateShare
from convoy.events import Began, Event, StopRequest
from convoy.layers.build import build_layers
from convoy.layers.norms import BatchNorm, PendingStatistics
from convoy.models.layers import (
    ActivationSpec,
    ConvSpec,
    GlobalPoolSpec,
    LayerPlan,
    LinearSpec,
    NormSpec,
)
from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import GradientTree
from convoy.numerics.loss_scale import LossScale
from convoy.numerics.traps import Traps, WatchedLayer
from convoy.optim.optimizer import Optimizer
from convoy.optim.update_rules import Sgd
from convoy.parallel.control import ControlGroup
from convoy.parallel.replicas import Replicas
from convoy.parallel.slice import Slice
from convoy.planning.learning_rate import LearningRatePlan
from convoy.planning.loop import EventSchedule, LoopPlan
from convoy.planning.topology import BatchPlan
from convoy.rng import key, permutation
from support.networks import SingleStage

CPU = torch.device("cpu")
BATCH = BatchPlan(micro_batch_size=4, gradient_accumulation=3, replicas=1)
UPDATES_PER_EPOCH = 4


class Shuffled(GeneratedSource):
    """Random images with irregular labels."""

    def __init__(self, samples: int, classes: int = 7) -> None:
        super().__init__(samples, image_size=8, classes=classes, seed=0)

    def labels(self, ids: Ids) -> Labels:
        return ids * ids % len(self.class_names)


def small_network(norm: str = "batch", classes: int = 7, seed: int = 0) -> Slice:
    layers = [
        LayerPlan("conv", ConvSpec(3, 8, 3)),
        LayerPlan("norm", NormSpec(8, norm, groups=2, eps=1e-5, momentum=0.1)),
        LayerPlan("relu", ActivationSpec("relu")),
        LayerPlan("pool", GlobalPoolSpec()),
        LayerPlan("head", LinearSpec(8, classes)),
    ]
    return Slice(layers, build_layers(layers, seed))


def small_plan(updates: int, reports: int = 2, stop_after: int | None = None) -> LoopPlan:
    """A plan with `reports` reports per epoch and a learning rate that decays every update."""
    rate = LearningRateConfig(lr=0.1, lr_schedule="exponential", lr_decay=0.95)
    never = EventSchedule(0, UPDATES_PER_EPOCH, updates)
    return LoopPlan(
        samples=UPDATES_PER_EPOCH * BATCH.samples_per_update + 3,
        samples_per_update=BATCH.samples_per_update,
        micro_batches=BATCH.gradient_accumulation,
        updates_per_epoch=UPDATES_PER_EPOCH,
        updates=updates,
        stop_after=stop_after,
        learning_rate=LearningRatePlan(rate, UPDATES_PER_EPOCH, updates),
        reports=EventSchedule(reports, UPDATES_PER_EPOCH, updates),
        checkpoints=never,
        validations=never,
    )


@dataclass
class SmallRun:
    """A trainer and its events."""

    trainer: Trainer
    network: Slice
    events: list[Event] = field(default_factory=list)
    listeners: list[Callable[[Event], None]] = field(default_factory=list)

    def on(self, kind: type[Event], update: int, action: Callable[[], object]) -> None:
        """Call a function at the event of an update."""

        def listen(event: Event) -> None:
            if isinstance(event, kind) and event.update == update:
                action()

        self.listeners.append(listen)

    def train(self, done: int = 0, stop: StopRequest | None = None) -> str:
        """Run all updates, or until a stop; returns the exit reason."""
        plan = self.trainer.plan
        self.notify(Began(done, plan.updates, plan.updates_per_epoch, plan.samples_per_update))
        with closing(self.trainer.updates(done, stop or StopRequest())) as results:
            for result in results:
                for event in result.events:
                    self.notify(event)
        return self.trainer.exit_reason

    def notify(self, event: Event) -> None:
        self.events.append(event)
        for listen in self.listeners:
            listen(event)

    def updates_with(self, kind: type[Event]) -> list[int]:
        """The updates of all events of a kind."""
        return [event.update for event in self.events if isinstance(event, kind)]

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: item.detach().clone() for name, item in self.network.named_tensors().items()}


def small_run(
    plan: LoopPlan,
    norm: str = "batch",
    options: LoaderOptions | None = None,
    policy: NonFinitePolicy | None = None,
) -> SmallRun:
    network = small_network(norm)
    network.position.micro_batches = range(plan.micro_batches)
    optimizer = Optimizer(FlatParameters(network.named_weights()), Sgd(OptimizerConfig()))
    gradients = GradientTree(optimizer.flat_params)
    pipeline = SingleStage(network, CrossEntropy(LossConfig()), gradients.collect)
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    layers = [WatchedLayer(*item, network.position) for item in enumerate(network.layers.values())]
    traps = Traps(list(network.layers), layers, [gradients])
    guard = StepGuard(
        loss_scale=LossScale(plan.loss_scale), policy=policy or NonFinitePolicy(), traps=traps
    )
    groups = [ParameterGroup(gradients, optimizer)]
    update = Update(pipeline, groups, Replicas(), PendingStatistics(norms), guard)
    share = UpdateShare(range(plan.micro_batches), ControlGroup(), (0,))
    micro_batches = UpdateBatches(small_feed(plan.samples), options or LoaderOptions(0, 1), share)
    return SmallRun(Trainer(plan, micro_batches, update), network)


def small_feed(samples: int) -> TrainingFeed:
    source = Shuffled(samples)
    transfer = DeviceTransfer(source.normalization, "host", CPU)
    view = PixelView(source, PAD_CROP_FLIP, seed=3)
    return TrainingFeed(view, SampleOrder(samples, BATCH, seed=3), transfer)


@dataclass(frozen=True)
class Plain:
    """The results of a plain torch loop over the same samples."""

    losses: list[float]  # of each micro-batch
    correct: list[int]
    weights: dict[str, torch.Tensor]


def plain_training(plan: LoopPlan) -> Plain:
    """The same training in plain torch: group norm, autograd accumulation, torch.optim."""
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
    losses, correct = [], []
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
            correct.append(int((logits.argmax(1) == labels).sum()))
        optimizer.step()
    named = dict(zip(start, network.state_dict().values(), strict=True))
    return Plain(losses, correct, named)


def plain_batch(samples: int, update: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One micro-batch, computed from the sample order of the epoch."""
    source, epoch = Shuffled(samples), update // UPDATES_PER_EPOCH
    start = (update % UPDATES_PER_EPOCH * 3 + micro) * 4
    ids = permutation(key(3, "order", epoch), samples)[start : start + 4]
    pixels = PAD_CROP_FLIP(source.pixels(ids), ids, seed=3, epoch=epoch)
    values = source.normalization
    images = (pixels / 255.0 - np.array(values.mean)) / np.array(values.std)
    return torch.from_numpy(images).float().permute(0, 3, 1, 2), torch.from_numpy(
        source.labels(ids)
    )
