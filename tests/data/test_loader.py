"""Feeds: samples and labels, normalization, memory layout and prefetching of micro-batches."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from convoy.data import loader as feed_module
from convoy.data.augment import NO_AUGMENTATION, PAD_CROP_FLIP, Augmentation
from convoy.data.loader import (
    DeviceTransfer,
    LoaderOptions,
    MicroBatch,
    MicroBatchIndex,
    NeededInputs,
    SampleOrder,
    SyntheticFeed,
    TrainingFeed,
    ValidationFeed,
)
from convoy.data.source import Ids, Labels, Normalization, Pixels
from convoy.data.sources.pixel_source import PixelSource, PixelView
from convoy.errors import DataError
from convoy.planning.topology import BatchPlan

CPU = torch.device("cpu")
NORMALIZATION = Normalization((0.49, 0.48, 0.45), (0.2, 0.21, 0.22))
_TRANSFER = DeviceTransfer(NORMALIZATION, "none", CPU)


@dataclass(frozen=True)
class Numbered(PixelSource):
    """Images whose first pixel is their id; reading `broken` fails."""

    samples: int
    broken: int = -1
    class_names = ("even", "odd")
    image_size = 8
    normalization = NORMALIZATION

    def __len__(self) -> int:
        return self.samples

    def pixels(self, ids: Ids) -> Pixels:
        if self.broken in ids:
            raise DataError(f"image {self.broken} is damaged")
        pixels = np.random.default_rng(0).integers(0, 256, (self.samples, 8, 8, 3), np.uint8)
        pixels[:, 0, 0, 0] = np.arange(self.samples)
        return pixels[ids]

    def labels(self, ids: Ids) -> Labels:
        return ids % 2


def make_training_feed(
    source: Numbered, augmentation: Augmentation = NO_AUGMENTATION, where: str = "none"
) -> TrainingFeed:
    order = SampleOrder(len(source), BatchPlan(4, 3, 1), seed=5)
    view = PixelView(source, augmentation, seed=5)
    return TrainingFeed(view, order, DeviceTransfer(NORMALIZATION, where, CPU))


def all_indices(feed: TrainingFeed, epochs: int = 1) -> list[MicroBatchIndex]:
    updates = range(epochs * feed.order.updates_per_epoch)
    return [MicroBatchIndex(update, micro) for update in updates for micro in range(3)]


def ids_of(batch: MicroBatch) -> list[int]:
    return [int(image) for image in batch.images[:, 0, 0, 0]]


def normalized_by_formula(pixels: Pixels) -> torch.Tensor:
    """(x / 255 − mean) / deviation in float64, with channels first."""
    mean, deviation = np.array(NORMALIZATION.mean), np.array(NORMALIZATION.std)
    return torch.from_numpy((pixels / 255.0 - mean) / deviation).permute(0, 3, 1, 2)


def host_buffer(transfer: DeviceTransfer, pixels: Pixels) -> torch.Tensor:
    buffer = transfer.allocate(len(pixels), pixels.shape[1])
    transfer.normalize_into(buffer, pixels)
    return buffer


def to_device(pixels: Pixels, where: str) -> MicroBatch:
    transfer = DeviceTransfer(NORMALIZATION, where, CPU)
    return MicroBatch(transfer.to_device(host_buffer(transfer, pixels)), None)


@pytest.mark.parametrize("where", ["host", "device"])
def test_pixels_are_normalized_by_the_formula(where: str) -> None:
    every_value = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    output = to_device(every_value, where).images

    assert output.dtype == torch.float32
    # The largest result is 2.8, so each of three roundings has an error of at most 2.4e-7.
    torch.testing.assert_close(
        output.double(), normalized_by_formula(every_value), rtol=0, atol=8e-7
    )


def test_host_and_device_normalize_equally() -> None:
    pixels = Numbered(9).pixels(np.arange(9))

    torch.testing.assert_close(
        to_device(pixels, "host").images, to_device(pixels, "device").images, rtol=1e-6, atol=1e-6
    )


def test_without_normalization_the_network_sees_raw_values() -> None:
    pixels = Numbered(3).pixels(np.arange(3))
    output = to_device(pixels, "none").images

    assert output.dtype == torch.float32
    assert np.array_equal(output.permute(0, 2, 3, 1).numpy(), pixels)


@pytest.mark.parametrize("where", ["host", "device", "none"])
@pytest.mark.parametrize("count", [1, 5])
def test_images_arrive_in_channels_last(where: str, count: int) -> None:
    images = to_device(Numbered(5).pixels(np.arange(count)), where).images

    assert images.shape == (count, 3, 8, 8)
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("where", ["host", "none"])
def test_channels_first_takes_no_copy(where: str) -> None:
    transfer = DeviceTransfer(NORMALIZATION, where, CPU)
    buffer = host_buffer(transfer, Numbered(5).pixels(np.arange(5)))

    assert transfer.to_device(buffer).data_ptr() == buffer.data_ptr()


def test_bytes_are_sent_if_the_device_normalizes() -> None:
    assert DeviceTransfer(NORMALIZATION, "device", CPU).allocate(5, 8).dtype == torch.uint8
    assert (
        DeviceTransfer(NORMALIZATION, "none", CPU, eight_bit=True).allocate(5, 8).dtype
        == torch.uint8
    )
    assert DeviceTransfer(NORMALIZATION, "host", CPU).allocate(5, 8).dtype == torch.float32


@pytest.mark.parametrize("where", ["host", "device", "none"])
def test_pixels_in_any_memory_order_give_the_same_images(where: str) -> None:
    pixels = Numbered(5).pixels(np.arange(5))
    planes = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)

    assert torch.equal(to_device(planes, where).images, to_device(pixels, where).images)


@pytest.mark.parametrize("where", ["host", "device", "none"])
def test_the_pixels_of_the_source_are_not_modified(where: str) -> None:
    pixels = Numbered(5).pixels(np.arange(5))
    before = pixels.copy()
    to_device(pixels, where)

    assert np.array_equal(pixels, before)


def test_training_takes_the_samples_of_the_order_with_their_labels() -> None:
    feed = make_training_feed(Numbered(50))
    indices = all_indices(feed, epochs=2)
    batches = list(feed.micro_batches(indices, LoaderOptions(workers=2, prefetch_depth=3)))

    assert [ids_of(batch) for batch in batches] == [
        feed.order.ids(index).tolist() for index in indices
    ]
    assert all(
        batch.targets.tolist() == [sample % 2 for sample in ids_of(batch)] for batch in batches
    )


def test_training_augments_each_sample_by_its_epoch() -> None:
    feed = make_training_feed(Numbered(48), PAD_CROP_FLIP)
    indices = all_indices(feed, epochs=3)
    batches = list(feed.micro_batches(indices, LoaderOptions(0, 1)))
    for index, batch in zip(indices, batches, strict=True):
        epoch, _, ids = feed.order.locate(index)
        pixels = PAD_CROP_FLIP(Numbered(48).pixels(ids), ids, seed=5, epoch=epoch)

        assert np.array_equal(batch.images.permute(0, 2, 3, 1).numpy(), pixels)


@pytest.mark.parametrize(
    "options", [LoaderOptions(1, 1), LoaderOptions(2, 3), LoaderOptions(4, 1), LoaderOptions(8, 20)]
)
def test_workers_and_prefetch_depth_do_not_change_batches(options: LoaderOptions) -> None:
    feed = make_training_feed(Numbered(60), PAD_CROP_FLIP, "host")
    indices = all_indices(feed, epochs=2)
    sequential = feed.micro_batches(indices, LoaderOptions(0, 1))
    prefetched = feed.micro_batches(indices, options)

    assert all(
        torch.equal(a.images, b.images) and torch.equal(a.targets, b.targets)
        for a, b in zip(sequential, prefetched, strict=True)
    )


def test_training_can_start_at_any_update() -> None:
    feed = make_training_feed(Numbered(60), PAD_CROP_FLIP, "host")
    indices = all_indices(feed, epochs=2)
    full = list(feed.micro_batches(indices, LoaderOptions(1, 3)))
    rest = list(feed.micro_batches(indices[12:], LoaderOptions(1, 3)))

    assert all(torch.equal(a.images, b.images) for a, b in zip(full[12:], rest, strict=True))


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_damaged_image_raises_at_its_position(workers: int) -> None:
    feed = make_training_feed(Numbered(24, broken=7))
    indices = all_indices(feed)
    position = next(i for i, index in enumerate(indices) if 7 in feed.order.ids(index))
    seen = 0
    with pytest.raises(DataError, match="image 7 is damaged"):
        for _ in feed.micro_batches(indices, LoaderOptions(workers, 3)):
            seen += 1

    assert seen == position


@pytest.mark.parametrize("batch_size", range(1, 15))
@pytest.mark.parametrize("workers", [0, 2])
def test_validation_covers_every_sample_once_in_order(batch_size: int, workers: int) -> None:
    feed = ValidationFeed(
        PixelView(Numbered(13)), batch_size, DeviceTransfer(NORMALIZATION, "none", CPU)
    )
    batches = list(feed.batches(range(feed.num_batches), LoaderOptions(workers, 2)))
    labels = torch.cat([batch.labels[: batch.samples] for batch in batches])

    assert [sample for batch in batches for sample in ids_of(batch)[: batch.samples]] == list(
        range(13)
    )
    assert labels.tolist() == [i % 2 for i in range(13)]
    assert {len(batch.images) for batch in batches} == {min(batch_size, 13)}


@pytest.mark.parametrize(
    "needed", [NeededInputs(True, False), NeededInputs(False, True), NeededInputs(False, False)]
)
def test_a_stage_gets_only_its_needed_inputs(needed: NeededInputs) -> None:
    source, transfer = Numbered(24, broken=-1 if needed.images else 3), _TRANSFER
    order = SampleOrder(24, BatchPlan(4, 3, 1), seed=5)
    training = TrainingFeed(PixelView(source), order, transfer, needed)
    complete = TrainingFeed(PixelView(Numbered(24)), order, transfer)
    validation = ValidationFeed(PixelView(source), 5, transfer, needed)
    batches = list(training.micro_batches(all_indices(training), LoaderOptions(1, 2)))
    full = list(complete.micro_batches(all_indices(complete), LoaderOptions(1, 2)))
    checked = validation.batches(range(5), LoaderOptions(1, 2))
    all_batches = [*batches, *(MicroBatch(batch.images, batch.labels) for batch in checked)]

    assert all((batch.images is not None) == needed.images for batch in all_batches)
    assert all((batch.targets is not None) == needed.labels for batch in all_batches)
    for part, both in zip(batches, full, strict=True):
        assert part.images is None or torch.equal(part.images, both.images)
        assert part.targets is None or torch.equal(part.targets, both.targets)


def test_validation_can_be_repeated() -> None:
    feed = ValidationFeed(PixelView(Numbered(5)), 2, DeviceTransfer(NORMALIZATION, "host", CPU))
    first = list(feed.batches(range(3), LoaderOptions(1, 1)))
    second = list(feed.batches(range(3), LoaderOptions(2, 3)))

    assert all(torch.equal(a.images, b.images) for a, b in zip(first, second, strict=True))


def test_synthetic_batches_reuse_one_batch() -> None:
    feed = SyntheticFeed((4, 3, 8, 8), classes=3, device=CPU)
    batches = list(
        feed.micro_batches(
            [MicroBatchIndex(u, m) for u in range(3) for m in range(2)], LoaderOptions(1, 1)
        )
    )

    assert len(batches) == 6
    assert len({id(batch.images) for batch in batches}) == 1
    assert batches[0].images.shape == (4, 3, 8, 8)
    assert batches[0].images.is_contiguous(memory_format=torch.channels_last)
    assert set(batches[0].targets.tolist()) <= {0, 1, 2}


def test_synthetic_batches_are_the_same_in_every_run() -> None:
    first, second = (SyntheticFeed((4, 3, 8, 8), 3, CPU).batch for _ in range(2))

    assert torch.equal(first.images, second.images)
    assert torch.equal(first.targets, second.targets)


def test_synthetic_batches_match_the_indices_and_can_be_closed() -> None:
    feed = SyntheticFeed((4, 3, 8, 8), 3, CPU)
    endless = feed.micro_batches((MicroBatchIndex(0, 0) for _ in iter(int, 1)), LoaderOptions(1, 1))
    next(endless)
    endless.close()

    assert list(endless) == []
    assert list(feed.micro_batches([], LoaderOptions(1, 1))) == []


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 100])
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("where", ["host", "device"])
def test_pieces_of_any_size_make_the_same_batches(piece: int, workers: int, where: str) -> None:
    feed = make_training_feed(Numbered(24), PAD_CROP_FLIP, where)
    indices = all_indices(feed)
    full = list(feed.micro_batches(indices, LoaderOptions(0, 1)))
    pieces = list(feed.micro_batches(indices, LoaderOptions(workers, 2, piece)))

    assert all(torch.equal(a.images, b.images) for a, b in zip(full, pieces, strict=True))
    assert all(torch.equal(a.targets, b.targets) for a, b in zip(full, pieces, strict=True))
    assert len(full) == len(pieces) == len(indices)


class Unreadable:
    """A view that cannot read some samples."""

    size = 8

    source = Numbered(8)

    def __init__(self, *ids: int) -> None:
        self.ids = ids

    def __call__(self, ids: Ids, epoch: int, out: Pixels) -> tuple[int, ...]:
        del epoch
        out[:] = 0
        return tuple(int(index) for index in np.flatnonzero(np.isin(ids, self.ids)))


@pytest.mark.parametrize("piece", [1, 2, 5])
@pytest.mark.parametrize("chunk_bytes", [1, 2**23])  # one image at a time, or all
def test_validation_reports_unreadable_samples(
    piece: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "_MAX_CHUNK_BYTES", chunk_bytes)
    feed = ValidationFeed(Unreadable(2, 5, 6), 5, _TRANSFER)
    batches = list(feed.batches(range(2), LoaderOptions(2, 2, piece)))

    assert [(batch.samples, batch.unreadable) for batch in batches] == [(5, (2,)), (3, (0, 1))]


def test_prefetching_of_large_batches_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    two_batches = 2 * 4 * 8 * 8 * 3 * 4  # bytes
    monkeypatch.setattr(feed_module, "_MAX_PREFETCH_BYTES", two_batches)
    requested: list[int] = []
    feed = make_training_feed(Numbered(48))
    indices = (
        MicroBatchIndex(update, 0) for update in range(4) if requested.append(update) is None
    )
    batches = feed.micro_batches(indices, LoaderOptions(1, 50))
    next(batches)
    batches.close()

    assert requested == [0, 1, 2]  # one in use, two prefetched


@pytest.mark.parametrize("where", ["host", "device", "none"])
def test_large_batches_are_prefetched_as_bytes_with_the_same_result(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = make_training_feed(Numbered(24), PAD_CROP_FLIP, where)
    usual = list(feed.micro_batches(all_indices(feed), LoaderOptions(0, 1)))
    monkeypatch.setattr(feed_module, "_MAX_PREFETCH_BYTES", 1)
    monkeypatch.setattr(feed_module, "_MAX_CHUNK_BYTES", 1)
    dtypes: list[torch.dtype] = []
    allocate = feed.transfer.allocate
    monkeypatch.setattr(
        feed.transfer,
        "allocate",
        lambda *args: dtypes.append((buffer := allocate(*args)).dtype) or buffer,
    )
    large = list(feed.micro_batches(all_indices(feed), LoaderOptions(2, 3, piece_size=2)))

    assert all(torch.equal(a.images, b.images) for a, b in zip(usual, large, strict=True))
    assert torch.uint8 in dtypes
