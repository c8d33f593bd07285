"""From a configuration and its sources to the feeds of training and validation."""

from pathlib import Path

import torch

from convoy.config.catalog import ENCODED
from convoy.config.schema import RunConfig
from convoy.config.sections.data import DataConfig
from convoy.data.loader import (
    DeviceTransfer,
    LoaderOptions,
    NeededInputs,
    Order,
    SyntheticFeed,
    TrainingFeed,
    ValidationFeed,
    some_of,
)
from convoy.data.mix import Mixing
from convoy.data.records.ledger import NAME, Ledger
from convoy.data.source import Source
from convoy.machine import available_cores
from convoy.models.network import COLORS
from convoy.plan.plan import RunPlan, used_samples

MAX_WORKERS = 32  # that are used, or tried, if the user does not say how many


def loader_options(config: RunConfig) -> LoaderOptions:
    """Of a batch of encoded images every worker prepares a part."""
    data, workers = config.data, workers_of(config.data)
    piece = data.dataloader_rebatch_size
    if piece is None and data.data == ENCODED and workers:
        piece = -(-config.batch.micro_batch_size // workers)
    return LoaderOptions(workers, data.prefetch_depth, piece)


def workers_of(config: DataConfig) -> int:
    """Encoded images are work for every core, others for one worker."""
    if config.dataloader_worker is not None:
        return config.dataloader_worker
    return min(MAX_WORKERS, len(available_cores())) if config.data == ENCODED else 1


def ledger_of(config: DataConfig, folder: Path | None = None) -> Ledger | None:
    """Records bad records, in the folder of the run if it has one; None: they end the run."""
    if config.bad_records == "error":
        return None
    return Ledger(config.max_bad_records, folder / NAME if folder else None)


def training_feed(
    plan: RunPlan,
    source: Source,
    device: torch.device,
    needed: NeededInputs,
    ledger: Ledger | None = None,
) -> TrainingFeed | SyntheticFeed:
    """The training micro-batches; synthetic ones never leave the device."""
    data, mixing, network = plan.config.data, plan.config.mixing, plan.network
    if data.data == "synthetic":
        return synthetic_feed(plan, device)
    used = used_samples(plan.config, len(source))
    chosen = some_of(len(source), used) if used < len(source) else None
    return TrainingFeed(
        source.training_view(data, network.image_size, ledger),
        Order(used, plan.batch, data.seed, chosen, plan.loop.first_epoch),
        _transfer(data, source, device, mixing.blends_on_host),
        needed,
        Mixing(mixing, data.seed, network.image_size),
    )


def synthetic_feed(plan: RunPlan, device: torch.device) -> SyntheticFeed:
    """A micro-batch of the size of the run's."""
    network = plan.network
    shape = (plan.batch.micro_batch_size, COLORS, network.image_size, network.image_size)
    return SyntheticFeed(shape, network.classes, device, plan.config.data.seed)


def validation_feed(
    config: RunConfig,
    source: Source,
    size: int,
    device: torch.device,
    needed: NeededInputs,
    ledger: Ledger | None = None,
) -> ValidationFeed:
    """Every validation sample once, as images of that size."""
    view = source.validation_view(config.data, size, ledger)
    transfer = _transfer(config.data, source, device)
    return ValidationFeed(view, config.validation.valid_batch_size, transfer, needed)


def _transfer(
    config: DataConfig, source: Source, device: torch.device, as_floats: bool = False
) -> DeviceTransfer:
    """Images that are blended on the host are normalized there, and travel as floats."""
    where, eight_bit = config.normalization_location, config.eight_bit_io
    if as_floats:
        where, eight_bit = "none" if where == "none" else "host", False
    normalization = source.normalization if config.normalize_std else source.mean_only
    return DeviceTransfer(normalization, where, device, eight_bit)
