"""From samples to micro-batches on the device: chosen, read ahead by workers, transferred.

Which samples an update takes is a pure function of (seed, epoch, position).
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import islice
from threading import Lock
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from convoy.data.mix import UNMIXED, Mix, Mixing
from convoy.data.source import Ids, Normalization, Pixels, View
from convoy.plan.topology import BatchPlan
from convoy.rng import key, permutation


@dataclass(frozen=True)
class MicroBatchIndex:
    """One micro-batch of the run: its update (from 0) and its number within the update."""

    update: int
    micro: int  # counted over all replicas: `BatchPlan.micro_batches_of` says who computes it


@dataclass(frozen=True)
class Order:
    """The order of the samples over the whole run. What does not fill an update is left out."""

    samples: int
    batch: BatchPlan
    seed: int
    chosen: Ids | None = None  # the samples that are used; None: all
    first_epoch: int = 0  # of this phase, when others came before

    @cached_property
    def updates_per_epoch(self) -> int:
        return self.batch.updates_per_epoch(self.samples)

    def place(self, index: MicroBatchIndex) -> tuple[int, int]:
        """Its epoch, and its number within the epoch, counted over all replicas."""
        each = self.batch.micro_batches
        assert 0 <= index.micro < each
        epochs, update = divmod(index.update, self.updates_per_epoch)
        return self.first_epoch + epochs, update * each + index.micro

    def ids(self, index: MicroBatchIndex) -> Ids:
        """The sample ids of one micro-batch."""
        epoch, number = self.place(index)
        size = self.batch.micro_batch_size
        ids = _shuffled(self.seed, epoch, self.samples)[number * size : (number + 1) * size]
        return ids if self.chosen is None else self.chosen[ids]


def some_of(samples: int, used: int) -> Ids:
    """A subset, spread evenly: the same for every seed, and larger ones contain smaller ones."""
    return np.sort(permutation(key("some of the samples"), samples)[:used])


@lru_cache(maxsize=4)  # the workers are at most two epochs apart
def _shuffled(seed: int, epoch: int, samples: int) -> Ids:
    order = permutation(key(seed, "order", epoch), samples)
    order.setflags(write=False)
    return order


class DeviceTransfer:
    """Copies batches to the device, normalized before (`host`), after (`device`) or not (`none`).

    Images travel as bytes if they are normalized on the device, or if `eight_bit` says so.
    """

    def __init__(
        self,
        normalization: Normalization,
        where: str,
        device: torch.device,
        eight_bit: bool = False,
    ) -> None:
        self.where = "device" if eight_bit and where == "host" else where
        self.as_bytes = eight_bit or where == "device"
        self.dtype = torch.uint8 if self.as_bytes else torch.float32  # of the images on the host
        self.device = device
        mean = np.array(normalization.mean, np.float32)
        deviation = np.array(normalization.deviation, np.float32)
        self._scale = 1 / (255 * deviation)
        self._shift = mean / deviation
        self._device_scale = torch.from_numpy(self._scale).to(device).view(-1, 1, 1)
        self._device_shift = torch.from_numpy(self._shift).to(device).view(-1, 1, 1)

    def allocate(self, images: int, size: int, as_bytes: bool = False) -> Tensor:
        """The host buffer of a batch: (images, height, width, 3)."""
        dtype = torch.uint8 if as_bytes else self.dtype
        return torch.empty(images, size, size, 3, dtype=dtype)

    def normalize_into(self, buffer: Tensor, pixels: Pixels) -> None:
        """Runs in a worker: everything that can be done without the device."""
        images = buffer.numpy()
        if self.as_bytes or self.where == "none":
            images[:] = pixels
            return
        # By whole rows of pixels: five times as fast as by pixels of three channels.
        rows = images.reshape(*images.shape[:2], -1)
        scale, shift = (np.tile(value, images.shape[2]) for value in (self._scale, self._shift))
        np.multiply(pixels.reshape(rows.shape), scale, out=rows)
        rows -= shift

    def images(self, images: Tensor) -> Tensor:
        """Runs in the training loop. Channels come first by a change of strides: no copy."""
        if images.dtype != self.dtype:  # a large batch has waited as bytes
            pixels, images = images.numpy(), self.allocate(*images.shape[:2])
            self.normalize_into(images, pixels)
        moved = images.to(self.device, non_blocking=True).permute(0, 3, 1, 2)
        if self.as_bytes:
            moved = moved.float()  # a copy, which may be changed
        if self.where == "device":
            moved.mul_(self._device_scale).sub_(self._device_shift)
        return moved


T = TypeVar("T")

_MAX_BYTES_AHEAD = 2**30  # of batches that are prepared ahead, with at least one batch
_MAX_BYTES_AT_ONCE = 2**23  # of pixels that a worker holds before they are normalized


@dataclass(frozen=True)
class LoaderOptions:
    """How the loading is shared out."""

    workers: int  # 0: the training loop does it
    depth: int  # batches prepared ahead
    piece: int | None = None  # samples that a worker prepares at a time; None: a whole batch


def prefetch(jobs: Iterable[Callable[[], T]], workers: int, depth: int) -> Generator[T]:
    """The results of the jobs in order; without workers each is done when it is needed."""
    if workers == 0:
        yield from (job() for job in jobs)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="infeed")
    waiting, pending = iter(jobs), deque[Future[T]]()
    try:
        # At least one job per worker, or some would never have work.
        pending.extend(pool.submit(job) for job in islice(waiting, max(depth, workers)))
        while pending:
            result = pending.popleft().result()
            pending.extend(pool.submit(job) for job in islice(waiting, 1))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class NeededInputs:
    """What a stage needs of a sample: the first one images, the last one labels."""

    images: bool = True
    labels: bool = True


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one pass; None for what this process does not need."""

    images: Tensor | None  # (micro, channels, height, width)
    labels: Tensor | None  # (micro,); mixed ones (several, micro)
    shares: Tensor | None = field(default=None, kw_only=True)  # of mixed labels, as many


@dataclass(frozen=True)
class ValidationBatch(MicroBatch):
    """Samples of one validation pass; the last batch is padded to the size of the others."""

    samples: int  # without the padding
    unread: tuple[int, ...] = ()  # positions of those whose own image could not be read


@dataclass(frozen=True)
class BatchSpec:
    """The samples of one batch, and what becomes of them."""

    ids: Ids
    epoch: int
    mix: Mix


@dataclass
class PendingBatch:
    """One batch on the host while workers fill it, piece by piece."""

    spec: BatchSpec
    images: Tensor | None
    labels: Tensor | None
    missing: int  # pieces
    unread: list[int] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)


_EVERYTHING = NeededInputs()


class _Feed:
    """What training and validation share: batches are prepared on the host, then transferred."""

    def __init__(self, view: View, transfer: DeviceTransfer, needed: NeededInputs) -> None:
        self.view = view
        self.transfer = transfer
        self.needed = needed
        self._image_pixels = 3 * view.size**2
        self._image_bytes = self._image_pixels * transfer.dtype.itemsize  # on the host

    def _prepared(
        self, specs: Iterable[BatchSpec], size: int, options: LoaderOptions
    ) -> Generator[PendingBatch]:
        """Filled by the workers, in the order of the specs; all have `size` samples."""
        pending: deque[PendingBatch] = deque()
        piece = min(options.piece or size, size)
        pieces = -(-size // piece)
        ahead = options.depth
        if self.needed.images:
            ahead = max(1, min(ahead, _MAX_BYTES_AHEAD // (size * self._image_bytes)))
        jobs = self._jobs(specs, piece, pending)
        with closing(prefetch(jobs, options.workers, ahead * pieces)) as done:
            for number, _ in enumerate(done, 1):
                if number % pieces == 0:
                    yield pending.popleft()

    def _jobs(
        self, specs: Iterable[BatchSpec], piece: int, pending: deque[PendingBatch]
    ) -> Iterator[Callable[[], None]]:
        """Each fills a piece of a batch; the batch is added to `pending` before its first one."""
        for spec in specs:
            count, images, labels = len(spec.ids), None, None
            if self.needed.images:
                # Two batches of floats would be too much: they stay bytes until they are used.
                is_large = 2 * count * self._image_bytes > _MAX_BYTES_AHEAD
                as_bytes = is_large and not spec.mix.by_worker
                images = self.transfer.allocate(count, self.view.size, as_bytes)
            if self.needed.labels:
                labels = torch.from_numpy(self.view.labels(spec.ids))
            starts = range(0, count, piece)
            pending.append(PendingBatch(spec, images, labels, len(starts)))
            for start in starts:
                yield partial(self._fill, pending[-1], slice(start, start + piece))

    def _fill(self, batch: PendingBatch, piece: slice) -> None:
        """Runs in a worker. Bytes are written in place, floats a few images at a time."""
        if batch.images is None:
            return
        spec, unread = batch.spec, list[int]()
        ids, out = spec.ids[piece], batch.images[piece]
        in_place = out.dtype == torch.uint8
        few = len(ids) if in_place else max(1, _MAX_BYTES_AT_ONCE // self._image_pixels)
        for start in range(0, len(ids), few):
            some = slice(start, start + few)
            pixels = out.numpy() if in_place else np.empty(out[some].shape, np.uint8)
            found = self.view(ids[some], spec.epoch, pixels)
            unread += (piece.start + start + position for position in found)
            if not in_place:
                self.transfer.normalize_into(out[some], pixels)
        with batch.lock:
            batch.unread += unread
            batch.missing -= 1
            is_complete = batch.missing == 0
        if is_complete and spec.mix.by_worker:
            batch.images = spec.mix.images(batch.images)

    def _on_device(self, batch: PendingBatch) -> MicroBatch:
        """Transferred, then mixed if no worker has done that."""
        mix, images, labels = batch.spec.mix, batch.images, batch.labels
        if images is not None:
            images = mix.on_device(self.transfer.images(images))
        if labels is not None:
            labels = labels.to(self.transfer.device, non_blocking=True)
        targets, shares = mix.targets(labels)
        return MicroBatch(images, targets, shares=shares)


class TrainingFeed(_Feed):
    """The micro-batches of a run, from any update on."""

    def __init__(
        self,
        view: View,
        order: Order,
        transfer: DeviceTransfer,
        needed: NeededInputs = _EVERYTHING,
        mixing: Mixing = UNMIXED,
    ) -> None:
        super().__init__(view, transfer, needed)
        self.order = order
        self.mixing = mixing

    def micro_batches(
        self, indices: Iterable[MicroBatchIndex], options: LoaderOptions
    ) -> Generator[MicroBatch]:
        """In the order of the indices, prepared ahead."""
        with closing(self._prepared_at(indices, options)) as batches:
            yield from map(self._on_device, batches)  # a named one would live for one more batch

    def on_host(
        self, indices: Iterable[MicroBatchIndex], options: LoaderOptions
    ) -> Generator[MicroBatch]:
        """The same before the transfer: channels last, in the type in which they travel."""
        with closing(self._prepared_at(indices, options)) as batches:
            yield from (MicroBatch(batch.images, batch.labels) for batch in batches)

    def _prepared_at(
        self, indices: Iterable[MicroBatchIndex], options: LoaderOptions
    ) -> Generator[PendingBatch]:
        specs = map(self._spec, indices)
        return self._prepared(specs, self.order.batch.micro_batch_size, options)

    def _spec(self, index: MicroBatchIndex) -> BatchSpec:
        ids, (epoch, number) = self.order.ids(index), self.order.place(index)
        return BatchSpec(ids, epoch, self.mixing.draw(epoch, number, len(ids)))


class ValidationFeed(_Feed):
    """Every sample of a split once, in order, in batches of one size.

    The last batch is padded with its last sample, which counts once: a network may round
    differently for another size, and a pipeline passes one size only.
    """

    def __init__(
        self,
        view: View,
        batch_size: int,
        transfer: DeviceTransfer,
        needed: NeededInputs = _EVERYTHING,
    ) -> None:
        super().__init__(view, transfer, needed)
        self.size = min(batch_size, len(view))
        self.count = -(-len(view) // self.size)

    def batches(self, numbers: Iterable[int], options: LoaderOptions) -> Generator[ValidationBatch]:
        """Those of these numbers, prepared ahead."""
        every = np.arange(self.count * self.size, dtype=np.int64).clip(max=len(self.view) - 1)
        rows = every.reshape(self.count, self.size)
        specs = (BatchSpec(rows[number], 0, Mix(self.size)) for number in numbers)
        with closing(self._prepared(specs, self.size, options)) as batches:
            for pending in batches:
                batch = self._on_device(pending)
                samples = min(self.size, len(self.view) - int(pending.spec.ids[0]))
                unread = tuple(sorted(pending.unread))
                yield ValidationBatch(batch.images, batch.labels, samples, unread)


class SyntheticFeed:
    """One random micro-batch that stays on the device and is used again and again."""

    def __init__(
        self, shape: tuple[int, int, int, int], classes: int, device: torch.device, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(shape, generator=generator).to(memory_format=torch.channels_last)
        labels = torch.randint(classes, shape[:1], generator=generator)
        self.resident = MicroBatch(images.to(device), labels.to(device))

    def micro_batches(
        self, indices: Iterable[MicroBatchIndex], options: LoaderOptions
    ) -> Generator[MicroBatch]:
        """The same one for every index."""
        del options
        return (self.resident for _ in indices)
