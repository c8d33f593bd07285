"""Sources → the feeds of training and validation."""

from pathlib import Path

import torch

from convoy.config.effects_data import ENCODED
from convoy.config.schema import RunConfig
from convoy.config.sections.data import DataConfig
from convoy.data.arrival import Arrival
from convoy.data.augment import BY_DATA, NONE
from convoy.data.description import Description
from convoy.data.feed import (
    Hands,
    Samples,
    SyntheticFeed,
    TrainingFeed,
    ValidationFeed,
    Wanted,
)
from convoy.data.images.window import Rule
from convoy.data.mix import Mixing
from convoy.data.order import Order, some_of
from convoy.data.photos import (
    IMAGENET_MEAN,
    STRICT,
    AnySource,
    Photos,
    Tolerance,
    TrainingPhotos,
    ValidationPhotos,
    judge_known,
)
from convoy.data.processes import ProcessView
from convoy.data.records.ledger import NAME, Ledger
from convoy.data.source import Normalization
from convoy.data.view import Augmented, Plain, View
from convoy.launch.cores import available_cores
from convoy.plan.network import COLORS
from convoy.plan.plan import RunPlan, used_samples

_RULES = {"pytorch": Rule.PYTORCH, "tensorflow": Rule.TENSORFLOW}
_MOST_WORKERS = 32


def hands_of(config: RunConfig) -> Hands:
    """Who prepares the images."""
    wish, workers = config.data, workers_of(config.data)
    piece = wish.dataloader_rebatch_size
    if piece is None and wish.data == ENCODED and workers:
        piece = -(-config.batch.micro_batch_size // workers)
    return Hands(workers, wish.prefetch_depth, piece)


def workers_of(config: DataConfig) -> int:
    """Encoded images are work for every core, others for one hand."""
    if config.dataloader_worker is not None:
        return config.dataloader_worker
    return min(_MOST_WORKERS, len(available_cores())) if config.data == ENCODED else 1


def tolerance_of(config: DataConfig, folder: Path | None = None) -> Tolerance:
    """What happens to bad records; those of a run are written down in its folder."""
    if config.bad_records == "error":
        return STRICT
    return Tolerance(Ledger(config.max_bad_records, folder / NAME if folder else None))


def training_feed(
    plan: RunPlan,
    source: AnySource,
    device: torch.device,
    wanted: Wanted,
    tolerance: Tolerance = STRICT,
) -> TrainingFeed | SyntheticFeed:
    """The training micro-batches; synthetic ones never leave the device."""
    data, network = plan.config.data, plan.network
    if data.data == "synthetic":
        size = network.image_size
        shape = (plan.batch.micro_batch_size, COLORS, size, size)
        return SyntheticFeed(shape, network.classes, device, data.seed)
    used = used_samples(plan.config, len(source))
    chosen = some_of(len(source), used) if used < len(source) else None
    order = Order(used, plan.batch, data.seed, chosen, plan.loop.first_epoch)
    view = training_view(data, source, network.image_size, tolerance)
    samples = Samples(view, source.labels, len(source))
    mixing = Mixing(plan.config.mixing, data.seed, network.image_size)
    arrival = _arrival(data, source, device, plan.config.mixing.blends_on_host)
    return TrainingFeed(samples, order, arrival, wanted, mixing)


def training_view(
    config: DataConfig, source: AnySource, size: int, tolerance: Tolerance = STRICT
) -> View:
    """How training sees the samples of an epoch."""
    if not isinstance(source, Photos):
        return Augmented(source, BY_DATA[config.data] if config.augment else NONE, config.seed)
    rule = _RULES[config.crop_rule] if config.augment else None
    return _view(config, source, size, rule, tolerance)


def _view(
    config: DataConfig, photos: Photos, size: int, rule: Rule | None, tolerance: Tolerance
) -> View:
    """Random windows by a rule, or the middles; prepared by threads or by processes."""
    judge_known(photos, tolerance)
    workers, boxes = workers_of(config), config.use_bbox_info
    if config.dataloader_kind == "processes" and workers:
        name = None if rule is None else rule.name
        folder = str(config.data_dir)
        wish = Description(folder, photos.split, size, config.seed, name, boxes)
        return ProcessView(photos, wish, tolerance, workers)
    if rule is None:
        return ValidationPhotos(photos, size, tolerance)
    return TrainingPhotos(photos, size, config.seed, rule, boxes, tolerance)


def validation_view(
    config: DataConfig, source: AnySource, size: int, tolerance: Tolerance = STRICT
) -> View:
    """How validation sees its samples."""
    if not isinstance(source, Photos):
        return Plain(source)
    return _view(config, source, size, None, tolerance)


def validation_feed(
    config: RunConfig,
    source: AnySource,
    size: int,
    device: torch.device,
    wanted: Wanted,
    tolerance: Tolerance = STRICT,
) -> ValidationFeed:
    """Every validation sample once, as images of that size."""
    view = validation_view(config.data, source, size, tolerance)
    samples = Samples(view, source.labels, len(source))
    arrival = _arrival(config.data, source, device)
    return ValidationFeed(samples, config.validation.valid_batch_size, arrival, wanted)


def _arrival(
    config: DataConfig, source: AnySource, device: torch.device, as_floats: bool = False
) -> Arrival:
    """What is blended on the host has been normalized there, and travels as floats."""
    where, eight_bit = config.normalization_location, config.eight_bit_io
    if as_floats:
        where, eight_bit = "none" if where == "none" else "host", False
    return Arrival(_normalization(config, source), where, device, eight_bit)


def _normalization(config: DataConfig, source: AnySource) -> Normalization:
    if config.normalize_std:
        return source.normalization
    if isinstance(source, Photos):
        return IMAGENET_MEAN
    return source.normalization.without_deviation()
