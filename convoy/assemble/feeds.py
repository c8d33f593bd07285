"""Sources → the feeds of training and validation."""

import torch

from convoy.config.schema import RunConfig
from convoy.data.arrival import Arrival
from convoy.data.augment import BY_DATA, NONE
from convoy.data.feed import (
    Hands,
    Samples,
    SyntheticFeed,
    TrainingFeed,
    ValidationFeed,
    Wanted,
)
from convoy.data.order import Order
from convoy.data.source import Source
from convoy.data.view import Augmented, Plain
from convoy.plan.network import COLORS
from convoy.plan.plan import RunPlan


def hands_of(config: RunConfig) -> Hands:
    """Who prepares the images."""
    return Hands(config.data.dataloader_worker, config.data.prefetch_depth)


def training_feed(
    plan: RunPlan, source: Source, device: torch.device, wanted: Wanted
) -> TrainingFeed | SyntheticFeed:
    """The training micro-batches; synthetic ones never leave the device."""
    data, network = plan.config.data, plan.network
    if data.data == "synthetic":
        size = network.image_size
        shape = (plan.batch.micro_batch_size, COLORS, size, size)
        return SyntheticFeed(shape, network.classes, device, data.seed)
    order = Order(len(source), plan.batch, data.seed)
    augmentation = BY_DATA[data.data] if data.augment else NONE
    view = Augmented(source, augmentation, data.seed)
    arrival = _arrival(plan.config, source, device)
    return TrainingFeed(Samples(view, source.labels, len(source)), order, arrival, wanted)


def validation_feed(
    config: RunConfig, source: Source, device: torch.device, wanted: Wanted
) -> ValidationFeed:
    """Every validation sample once."""
    samples = Samples(Plain(source), source.labels, len(source))
    arrival = _arrival(config, source, device)
    return ValidationFeed(samples, config.validation.valid_batch_size, arrival, wanted)


def _arrival(config: RunConfig, source: Source, device: torch.device) -> Arrival:
    wish = config.data
    return Arrival(source.normalization, wish.normalization_location, device, wish.eight_bit_io)
