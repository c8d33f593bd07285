"""Mixed micro-batches are equal for any workers, stages, layout and start, on host and device."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch

from convoy.batch import MixedTargets
from convoy.config.sections.data import MixingConfig
from convoy.data.loader import (
    DeviceTransfer,
    LoaderOptions,
    MicroBatch,
    MicroBatchIndex,
    NeededInputs,
    SampleOrder,
    TrainingFeed,
)
from convoy.data.mix import NO_MIXING, Mixing
from convoy.data.source import Ids, Labels, Normalization, Pixels
from convoy.data.sources.pixel_source import PixelSource, PixelView
from convoy.planning.topology import BatchPlan

CPU = torch.device("cpu")
NORMALIZATION = Normalization((0.49, 0.48, 0.45), (0.2, 0.21, 0.22))
SIDE, MICRO, MICRO_BATCHES = 8, 4, 6
SAMPLES = 2 * MICRO * MICRO_BATCHES + 3
MIXUP = MixingConfig(mixup_alpha=0.4)
CUTMIX = MixingConfig(cutmix_lambda_low=0.2, cutmix_lambda_high=0.8, cutmix_disable_prob=0.2)
BOTH = replace(CUTMIX, mixup_alpha=0.4)
MIXINGS = {"mixup": MIXUP, "cutmix": CUTMIX, "both": BOTH}

TRANSFERS = list(product(["host", "device", "none"], [False, True]))

with_each_mixing = pytest.mark.parametrize("mixing", MIXINGS.values(), ids=MIXINGS.keys())


@dataclass(frozen=True)
class Gray(PixelSource):
    """Every pixel of an image is its label, so the mean of a mixed image is its mean label."""

    class_names = tuple("abcdefghij")
    image_size = SIDE
    normalization = NORMALIZATION

    def __len__(self) -> int:
        return SAMPLES

    def pixels(self, ids: Ids) -> Pixels:
        values = self.labels(ids).astype(np.uint8)[:, None, None, None]
        return np.broadcast_to(values, (len(ids), SIDE, SIDE, 3)).copy()

    def labels(self, ids: Ids) -> Labels:
        return (ids * 7) % 10


@dataclass(frozen=True)
class Noise(Gray):
    """Every pixel is different."""

    def pixels(self, ids: Ids) -> Pixels:
        all_pixels = np.random.default_rng(0).integers(0, 256, (SAMPLES, SIDE, SIDE, 3), np.uint8)
        return all_pixels[ids]


def feed(
    mixing: MixingConfig,
    batch: BatchPlan | None = None,
    needed: NeededInputs | None = None,
    source: Gray | None = None,
    transfer: DeviceTransfer | None = None,
) -> TrainingFeed:
    order = SampleOrder(SAMPLES, batch or BatchPlan(MICRO, MICRO_BATCHES, 1), seed=5)
    return TrainingFeed(
        PixelView(source or Noise()),
        order,
        transfer or DeviceTransfer(NORMALIZATION, "host", CPU),
        needed or NeededInputs(),
        Mixing(mixing, seed=5, image_size=SIDE),
    )


def make_indices(updates: int = 4, micros: range = range(MICRO_BATCHES)) -> list[MicroBatchIndex]:
    return [MicroBatchIndex(update, micro) for update in range(updates) for micro in micros]


def batches(fed: TrainingFeed, indices: list[MicroBatchIndex] | None = None) -> list[MicroBatch]:
    return list(fed.micro_batches(indices or make_indices(), LoaderOptions(0, 1)))


def tensors(batch: MicroBatch) -> list[torch.Tensor | None]:
    """Images, labels, and the weights of mixed labels."""
    if isinstance(batch.targets, MixedTargets):
        return [batch.images, batch.targets.labels, batch.targets.weights]
    return [batch.images, batch.targets, None]


def are_equal(first: MicroBatch, second: MicroBatch) -> bool:
    pairs = zip(tensors(first), tensors(second), strict=True)
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


@with_each_mixing
def test_the_labels_of_a_micro_batch_are_those_of_its_images(mixing: MixingConfig) -> None:
    fed = feed(mixing, source=Gray(), transfer=DeviceTransfer(NORMALIZATION, "none", CPU))
    unmixed = 0
    for batch in batches(fed, make_indices(40)):
        assert batch.images is not None and batch.targets is not None
        seen = batch.images.double().mean((1, 2, 3))
        if isinstance(batch.targets, MixedTargets):
            expected = (batch.targets.labels * batch.targets.weights.double()).sum(0)
        else:
            unmixed += 1
            expected = batch.targets.double()

        torch.testing.assert_close(seen, expected, rtol=0, atol=1e-5)
    assert (unmixed > 0) == (mixing is CUTMIX)


@with_each_mixing
@pytest.mark.parametrize(
    "options", [LoaderOptions(1, 1), LoaderOptions(2, 3), LoaderOptions(8, 20)]
)
def test_workers_and_prefetch_depth_do_not_change_batches(
    mixing: MixingConfig, options: LoaderOptions
) -> None:
    fed = feed(replace(mixing, hostside_image_mixing=options.workers == 2))
    prefetched = list(fed.micro_batches(make_indices(), options))

    assert all(map(are_equal, batches(fed), prefetched))


@with_each_mixing
def test_training_can_start_at_any_update(mixing: MixingConfig) -> None:
    full = batches(feed(mixing), make_indices())
    rest = batches(feed(mixing), make_indices()[7:])

    assert all(map(are_equal, full[7:], rest))


@with_each_mixing
@pytest.mark.parametrize(("accumulated", "replicas"), [(3, 2), (2, 3), (1, 6)])
def test_replicas_mix_as_a_single_replica(
    mixing: MixingConfig, accumulated: int, replicas: int
) -> None:
    single = dict(zip(make_indices(), batches(feed(mixing)), strict=True))
    plan = BatchPlan(MICRO, accumulated, replicas)
    for replica in range(replicas):
        local = make_indices(micros=plan.micro_batches_of(replica))
        found = batches(feed(mixing, plan), local)

        assert all(map(are_equal, found, [single[index] for index in local]))


@with_each_mixing
def test_stages_with_only_images_or_labels_agree(mixing: MixingConfig) -> None:
    first = batches(feed(mixing, needed=NeededInputs(labels=False)))
    last = batches(feed(mixing, needed=NeededInputs(images=False)))
    joined = [
        MicroBatch(images.images, labels.targets)
        for images, labels in zip(first, last, strict=True)
    ]

    assert all(map(are_equal, batches(feed(mixing)), joined))
    assert all(batch.targets is None for batch in first)
    assert all(batch.images is None for batch in last)


@with_each_mixing
@pytest.mark.parametrize(("where", "eight_bit"), TRANSFERS)
def test_host_and_device_mix_to_the_same_bits(
    mixing: MixingConfig, where: str, eight_bit: bool
) -> None:
    on_host = replace(mixing, hostside_image_mixing=True)
    transfer = DeviceTransfer(NORMALIZATION, where, CPU, eight_bit)
    floats = DeviceTransfer(NORMALIZATION, "none" if where == "none" else "host", CPU)
    device = feed(mixing, transfer=transfer)
    host = feed(on_host, transfer=floats if on_host.uses_host_mixup else transfer)

    assert all(map(are_equal, batches(device), batches(host)))


def test_host_and_device_normalize_every_value_to_the_same_bits() -> None:
    every_value = np.arange(256, dtype=np.uint8)[:, None].repeat(3, 1).reshape(1, 16, 16, 3)
    transfers = [DeviceTransfer(NORMALIZATION, where, CPU) for where in ("host", "device")]
    buffers = [transfer.allocate(1, 16) for transfer in transfers]
    for transfer, buffer in zip(transfers, buffers, strict=True):
        transfer.normalize_into(buffer, every_value)
    host, device = (
        transfer.to_device(buffer) for transfer, buffer in zip(transfers, buffers, strict=True)
    )

    assert torch.equal(host, device)


def test_micro_batches_of_different_epochs_are_mixed_differently() -> None:
    found = [batch.targets for batch in batches(feed(MIXUP))]

    assert len(
        {str(targets.weights.tolist()) for targets in found if isinstance(targets, MixedTargets)}
    ) == len(make_indices())


@with_each_mixing
def test_mixed_images_stay_in_channels_last(mixing: MixingConfig) -> None:
    for batch in batches(feed(mixing)):
        assert batch.images is not None
        assert batch.images.is_contiguous(memory_format=torch.channels_last)


def test_a_feed_without_mixing_has_plain_labels() -> None:
    order = SampleOrder(SAMPLES, BatchPlan(MICRO, MICRO_BATCHES, 1), seed=5)
    unmixed = TrainingFeed(PixelView(Noise()), order, DeviceTransfer(NORMALIZATION, "host", CPU))
    never = feed(replace(CUTMIX, cutmix_disable_prob=1.0))

    assert unmixed.mixing is NO_MIXING
    assert all(isinstance(batch.targets, torch.Tensor) for batch in batches(unmixed))
    assert all(map(are_equal, batches(unmixed), batches(never)))
