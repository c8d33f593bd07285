"""Build the training and validation feeds from a config and its data sources."""

from pathlib import Path

import numpy as np
import torch

from convoy.config.schema import RunConfig
from convoy.config.sections.data import ENCODED_DATA, DataConfig
from convoy.data.loader import (
    DeviceTransfer,
    LoaderOptions,
    NeededInputs,
    SampleOrder,
    SyntheticFeed,
    TrainingFeed,
    ValidationFeed,
)
from convoy.data.mix import Mixing
from convoy.data.records.ledger import LEDGER_NAME, Ledger
from convoy.data.source import Source
from convoy.machine import usable_core_count
from convoy.models.network import IMAGE_CHANNELS
from convoy.planning.plan import RunPlan, num_used_samples
from convoy.rng import key, permutation

MAX_WORKERS = 32  # used or tried by default


def loader_options(config: RunConfig) -> LoaderOptions:
    """Return the loader options; each worker prepares a part of every batch of encoded images."""
    data, workers = config.data, num_workers(config.data)
    piece_size = data.dataloader_rebatch_size
    if piece_size is None and data.data == ENCODED_DATA and workers:
        piece_size = -(-config.batch.micro_batch_size // workers)
    return LoaderOptions(workers, data.prefetch_depth, piece_size)


def num_workers(config: DataConfig) -> int:
    """Return the number of loader workers; by default one per core for encoded images, else one."""
    if config.dataloader_worker is not None:
        return config.dataloader_worker
    return min(MAX_WORKERS, usable_core_count()) if config.data == ENCODED_DATA else 1


def make_ledger(config: DataConfig, folder: Path | None = None) -> Ledger | None:
    """Make a ledger of bad records, saved in the run folder if given; None if they are errors."""
    if config.bad_records == "error":
        return None
    return Ledger(config.max_bad_records, folder / LEDGER_NAME if folder else None)


def make_training_feed(
    plan: RunPlan,
    source: Source,
    device: torch.device,
    needed: NeededInputs,
    ledger: Ledger | None = None,
) -> TrainingFeed | SyntheticFeed:
    """Make the feed of training micro-batches; synthetic ones stay on the device."""
    data, mixing, network = plan.config.data, plan.config.mixing, plan.network
    if data.data == "synthetic":
        return make_synthetic_feed(plan, device)
    used = num_used_samples(plan.config, len(source))
    subset = None
    if used < len(source):  # the same samples for every seed; larger subsets contain smaller ones
        subset = np.sort(permutation(key("some of the samples"), len(source))[:used])
    return TrainingFeed(
        source.training_view(data, network.image_size, ledger),
        SampleOrder(used, plan.batch, data.seed, subset, plan.loop.first_epoch),
        _make_transfer(data, source, device, mixing.uses_host_mixup),
        needed,
        Mixing(mixing, data.seed, network.image_size),
    )


def make_synthetic_feed(plan: RunPlan, device: torch.device) -> SyntheticFeed:
    """Make a feed of random data with the micro-batch size of the run."""
    network = plan.network
    shape = (plan.batch.micro_batch_size, IMAGE_CHANNELS, network.image_size, network.image_size)
    return SyntheticFeed(shape, network.classes, device, plan.config.data.seed)


def make_validation_feed(
    config: RunConfig,
    source: Source,
    size: int,
    device: torch.device,
    needed: NeededInputs,
    ledger: Ledger | None = None,
) -> ValidationFeed:
    """Make a feed of every validation sample, as images of this size."""
    view = source.validation_view(config.data, size, ledger)
    transfer = _make_transfer(config.data, source, device)
    return ValidationFeed(view, config.validation.valid_batch_size, transfer, needed)


def _make_transfer(
    config: DataConfig, source: Source, device: torch.device, as_floats: bool = False
) -> DeviceTransfer:
    """Make the transfer to the device; images mixed on the host are normalized there as floats."""
    normalize_on, eight_bit = config.normalization_location, config.eight_bit_io
    if source.is_normalized:
        return DeviceTransfer(source.normalization, "none", device, takes_floats=True)
    if as_floats:
        normalize_on, eight_bit = "none" if normalize_on == "none" else "host", False
    normalization = source.normalization if config.normalize_std else source.mean_normalization
    return DeviceTransfer(normalization, normalize_on, device, eight_bit)
