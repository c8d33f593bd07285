"""Data loading: select samples, prefetch them in worker threads, and copy batches to the device.

The samples of an update are a pure function of (seed, epoch, position).
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import islice
from threading import Lock, get_ident
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from convoy.batch import MixedTargets, Targets
from convoy.data.mix import NO_MIXING, Mix, Mixing
from convoy.data.source import Ids, Normalization, Pixels, View
from convoy.planning.topology import BatchPlan
from convoy.rng import key, permutation


@dataclass(frozen=True)
class MicroBatchIndex:
    """The position of a micro-batch in the run: its update and its index within the update."""

    update: int  # from 0
    micro: int  # over all replicas; `BatchPlan.micro_batches_of` assigns them to replicas


@dataclass(frozen=True)
class SampleOrder:
    """The order of the samples over the entire run. An incomplete last update is dropped."""

    samples: int
    batch: BatchPlan
    seed: int
    subset: Ids | None = None  # the samples to use; None: all
    first_epoch: int = 0  # of this phase, if it follows others

    @cached_property
    def updates_per_epoch(self) -> int:
        return self.batch.updates_per_epoch(self.samples)

    def locate(self, index: MicroBatchIndex) -> tuple[int, int, Ids]:
        """Return the epoch, the index within the epoch over all replicas, and the sample ids."""
        per_update, size = self.batch.micro_batches, self.batch.micro_batch_size
        assert 0 <= index.micro < per_update
        epochs, update = divmod(index.update, self.updates_per_epoch)
        epoch, number = self.first_epoch + epochs, update * per_update + index.micro
        order = _epoch_permutation(self.seed, epoch, self.samples)
        ids = order[number * size : (number + 1) * size]
        return epoch, number, ids if self.subset is None else self.subset[ids]

    def ids(self, index: MicroBatchIndex) -> Ids:
        return self.locate(index)[2]


@lru_cache(maxsize=4)  # workers are at most two epochs apart
def _epoch_permutation(seed: int, epoch: int, samples: int) -> Ids:
    order = permutation(key(seed, "order", epoch), samples)
    order.setflags(write=False)
    return order


class DeviceTransfer:
    """Copies batches to the device and normalizes them on the `host`, the `device` or not (`none`).

    Images are sent as bytes if they are normalized on the device, or if `eight_bit` is set.
    """

    def __init__(
        self,
        normalization: Normalization,
        normalize_on: str,
        device: torch.device,
        eight_bit: bool = False,
        takes_floats: bool = False,  # views write floats, which are not normalized
    ) -> None:
        self.takes_floats = takes_floats
        self.normalize_on = "device" if eight_bit and normalize_on == "host" else normalize_on
        self.sends_bytes = eight_bit or normalize_on == "device"
        self.dtype = torch.uint8 if self.sends_bytes else torch.float32  # of the images on the host
        self.device = device
        mean = np.array(normalization.mean, np.float32)
        std = np.array(normalization.std, np.float32)
        self._scale = 1 / (255 * std)
        self._shift = mean / std
        self._device_scale = torch.from_numpy(self._scale).to(device).view(-1, 1, 1)
        self._device_shift = torch.from_numpy(self._shift).to(device).view(-1, 1, 1)

    def allocate(self, images: int, size: int, as_bytes: bool = False) -> Tensor:
        """Allocate the host buffer of a batch: (images, height, width, 3)."""
        dtype = torch.uint8 if as_bytes else self.dtype
        return torch.empty(images, size, size, 3, dtype=dtype)

    def normalize_into(self, buffer: Tensor, pixels: Pixels) -> None:
        """Write normalized pixels to a host buffer. Runs in a worker, without the device."""
        images = buffer.numpy()
        if self.sends_bytes or self.normalize_on == "none":
            images[:] = pixels
            return
        # Row by row: five times as fast as pixel by pixel with three channels.
        rows = images.reshape(*images.shape[:2], -1)
        scale, shift = (np.tile(value, images.shape[2]) for value in (self._scale, self._shift))
        np.multiply(pixels.reshape(rows.shape), scale, out=rows)
        rows -= shift

    def to_device(self, images: Tensor) -> Tensor:
        """Copy images to the device, channels first. Runs in the training loop.

        Only the strides change for channels first, so this takes no second copy.
        """
        if images.dtype != self.dtype:  # a large batch was prefetched as bytes
            pixels, images = images.numpy(), self.allocate(*images.shape[:2])
            self.normalize_into(images, pixels)
        moved = images.to(self.device, non_blocking=True).permute(0, 3, 1, 2)
        if self.sends_bytes:
            moved = moved.float()  # a copy, safe to modify in place
        if self.normalize_on == "device":
            moved.mul_(self._device_scale).sub_(self._device_shift)
        return moved


T = TypeVar("T")

_MAX_PREFETCH_BYTES = 2**30  # of prefetched batches; at least one batch is always prefetched
_MAX_CHUNK_BYTES = 2**23  # of pixels that a worker normalizes at a time


@dataclass(frozen=True)
class LoaderOptions:
    """How loading is distributed over worker threads."""

    workers: int  # 0: load in the training loop
    prefetch_depth: int  # batches prepared ahead
    piece_size: int | None = None  # samples that a worker prepares at a time; None: a full batch


def prefetch(jobs: Iterable[Callable[[], T]], workers: int, depth: int) -> Generator[T]:
    """Yield the results of the jobs in order; without workers, run each job on demand."""
    if workers == 0:
        yield from (job() for job in jobs)
        return
    threads = set[int]()
    pool = ThreadPoolExecutor(workers, "infeed", initializer=lambda: threads.add(get_ident()))
    waiting, pending = iter(jobs), deque[Future[T]]()
    try:
        # At least one job per worker, or some workers would stay idle.
        pending.extend(pool.submit(job) for job in islice(waiting, max(depth, workers)))
        while pending:
            pending[0].result()
            pending.extend(pool.submit(job) for job in islice(waiting, 1))
            yield pending.popleft().result()  # a name would keep it alive
    finally:
        # A worker may collect an unused generator as garbage, and cannot wait for itself.
        pool.shutdown(wait=get_ident() not in threads, cancel_futures=True)


@dataclass(frozen=True)
class NeededInputs:
    """The parts of a sample that a stage needs: images (first stage) and labels (last stage)."""

    images: bool = True
    labels: bool = True


class MicroBatch(NamedTuple):
    """Samples of one forward pass; None for inputs that this process does not need."""

    images: Tensor | None  # (micro, channels, height, width)
    targets: Targets | None


class ValidationBatch(NamedTuple):
    """Samples of one validation pass; the last batch is padded to full size."""

    images: Tensor | None
    labels: Tensor | None
    samples: int  # without the padding
    unreadable: tuple[int, ...]  # positions whose own image could not be read


@dataclass
class PendingBatch:
    """A batch on the host that workers fill piece by piece."""

    ids: Ids
    epoch: int = 0
    mix: Mix | None = None
    images: Tensor | None = None
    labels: Tensor | None = None
    pieces_left: int = 0
    unreadable: list[int] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)


class _Feed:
    """Base class of training and validation feeds: prefetch on the host, then transfer."""

    view: View
    transfer: DeviceTransfer
    needed: NeededInputs
    mixing = NO_MIXING

    def _prefetch_batches(
        self, batches: Iterable[PendingBatch], size: int, options: LoaderOptions
    ) -> Generator[PendingBatch]:
        """Yield the same batches, filled by the workers; all have `size` samples."""
        piece_size = min(options.piece_size or size, size)
        pieces = -(-size // piece_size)
        depth, as_bytes = options.prefetch_depth, False
        if self.needed.images:
            batch_bytes = size * 3 * self.view.size**2 * self.transfer.dtype.itemsize
            depth = max(1, min(depth, _MAX_PREFETCH_BYTES // batch_bytes))
            # Two float batches would exceed the limit: keep them as bytes until they are used.
            is_large = 2 * batch_bytes > _MAX_PREFETCH_BYTES
            is_mixed_here = self.mixing.config.hostside_image_mixing
            as_bytes = is_large and not (is_mixed_here or self.transfer.takes_floats)
        jobs = self._fill_jobs(batches, piece_size, as_bytes)
        with closing(prefetch(jobs, options.workers, depth * pieces)) as done:
            yield from islice(done, pieces - 1, None, pieces)  # after the last piece of a batch

    def _fill_jobs(
        self, batches: Iterable[PendingBatch], piece_size: int, as_bytes: bool
    ) -> Iterator[Callable[[], PendingBatch]]:
        size = self.view.size
        for batch in batches:
            if self.needed.images:
                batch.images = self.transfer.allocate(len(batch.ids), size, as_bytes)
            if self.needed.labels:
                batch.labels = torch.from_numpy(self.view.source.labels(batch.ids))
            starts = range(0, len(batch.ids), piece_size)
            batch.pieces_left = len(starts)
            for start in starts:
                yield partial(self._fill_piece, batch, slice(start, start + piece_size))

    def _fill_piece(self, batch: PendingBatch, piece: slice) -> PendingBatch:
        """Fill a piece of a batch, in a worker: bytes in place, floats a few images at a time."""
        if batch.images is None:
            return batch
        ids, out, unreadable = batch.ids[piece], batch.images[piece], list[int]()
        in_place = out.dtype == torch.uint8 or self.transfer.takes_floats
        chunk_size = len(ids) if in_place else max(1, _MAX_CHUNK_BYTES // out[0].numel())
        for start in range(0, len(ids), chunk_size):
            chunk = slice(start, start + chunk_size)
            pixels = out.numpy() if in_place else np.empty(out[chunk].shape, np.uint8)
            positions = self.view(ids[chunk], batch.epoch, pixels)
            unreadable += (piece.start + start + position for position in positions)
            if not in_place:
                self.transfer.normalize_into(out[chunk], pixels)
        with batch.lock:
            batch.unreadable += unreadable
            batch.pieces_left -= 1
            is_complete = batch.pieces_left == 0
        if is_complete and batch.mix is not None and self.mixing.config.hostside_image_mixing:
            batch.images = batch.mix.apply(batch.images)
        return batch

    def _to_device(self, batch: PendingBatch) -> MicroBatch:
        """Copy a batch to the device, and mix it there unless a worker mixed it on the host."""
        mix, images, targets = batch.mix, batch.images, None
        if images is not None:
            images = self.transfer.to_device(images)
            if mix is not None and not self.mixing.config.hostside_image_mixing:
                images = mix.apply_channels_first(images)
        if batch.labels is not None:
            labels = batch.labels.to(self.transfer.device, non_blocking=True)
            targets = labels if mix is None else mix.mix_targets(labels)
        return MicroBatch(images, targets)


@dataclass(frozen=True)
class TrainingFeed(_Feed):
    """The training micro-batches of a run, starting at any update."""

    view: View
    order: SampleOrder
    transfer: DeviceTransfer
    needed: NeededInputs = NeededInputs()
    mixing: Mixing = NO_MIXING

    def micro_batches(
        self, indices: Iterable[MicroBatchIndex], options: LoaderOptions
    ) -> Generator[MicroBatch]:
        """Yield the micro-batches in the order of the indices, with prefetching."""
        with closing(self.host_batches(indices, options)) as batches:
            yield from map(self._to_device, batches)  # no name keeps a batch alive

    def host_batches(
        self, indices: Iterable[MicroBatchIndex], options: LoaderOptions
    ) -> Generator[PendingBatch]:
        """Yield the batches before the transfer: channels last, in the dtype that is sent."""
        size = self.order.batch.micro_batch_size
        batches = (
            PendingBatch(ids, epoch, self.mixing.sample(epoch, number, size))
            for epoch, number, ids in map(self.order.locate, indices)
        )
        return self._prefetch_batches(batches, size, options)


@dataclass(frozen=True)
class ValidationFeed(_Feed):
    """Every sample of a split once, in order, in batches of equal size.

    The last batch is padded with its last sample, which counts once: a network may round
    differently at another batch size, and a pipeline supports only one.
    """

    view: View
    batch_size: int
    transfer: DeviceTransfer
    needed: NeededInputs = NeededInputs()

    @property
    def size(self) -> int:
        return min(self.batch_size, len(self.view.source))

    @property
    def num_batches(self) -> int:
        return -(-len(self.view.source) // self.size)

    def batches(
        self, batch_indices: Iterable[int], options: LoaderOptions
    ) -> Generator[ValidationBatch]:
        count, size, total = self.num_batches, self.size, len(self.view.source)
        rows = np.arange(count * size, dtype=np.int64).clip(max=total - 1).reshape(count, size)
        pending = (PendingBatch(rows[index]) for index in batch_indices)
        with closing(self._prefetch_batches(pending, size, options)) as batches:
            for batch in batches:
                images, labels = self._to_device(batch)
                assert not isinstance(labels, MixedTargets)
                samples = min(size, total - int(batch.ids[0]))
                yield ValidationBatch(images, labels, samples, tuple(sorted(batch.unreadable)))


class SyntheticFeed:
    """A random micro-batch that stays on the device and is reused for every step."""

    def __init__(
        self, shape: tuple[int, int, int, int], classes: int, device: torch.device, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(shape, generator=generator).to(memory_format=torch.channels_last)
        labels = torch.randint(classes, shape[:1], generator=generator)
        self.batch = MicroBatch(images.to(device), labels.to(device))

    def micro_batches(
        self, indices: Iterable[MicroBatchIndex], options: LoaderOptions
    ) -> Generator[MicroBatch]:
        """Yield the same micro-batch for every index."""
        del options
        return (self.batch for _ in indices)
