"""From a source to micro-batches on the device: read, augment, normalize, move."""

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from convoy.data.augment import Augmentation
from convoy.data.infeed import prefetch
from convoy.data.order import Order, Place
from convoy.data.source import Ids, Normalization, Pixels, Source


@dataclass(frozen=True)
class Wanted:
    """What a stage needs of a sample: the first one images, the last one labels."""

    images: bool = True
    labels: bool = True


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one pass; None for what this process does not want."""

    images: Tensor | None  # (micro, channels, height, width)
    labels: Tensor | None  # (micro,)


@dataclass(frozen=True)
class Batch(MicroBatch):
    """Samples of one validation pass; the last batch is filled up to the size of the others."""

    samples: int  # those that count


_EVERYTHING = Wanted()


@dataclass(frozen=True)
class Hands:
    """How the work of feeding is shared out."""

    workers: int
    depth: int


class Arrival:
    """Brings a micro-batch to the device, and normalizes it there or on the way.

    As bytes it travels when it is normalized on the device, or when that is asked for.
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
        self.device = device
        mean = np.array(normalization.mean, np.float32)
        deviation = np.array(normalization.deviation, np.float32)
        self._scale = 1 / (255 * deviation)
        self._shift = mean / deviation
        self._device_scale = torch.from_numpy(self._scale).to(device).view(-1, 1, 1)
        self._device_shift = torch.from_numpy(self._shift).to(device).view(-1, 1, 1)

    def on_host(self, pixels: Pixels) -> Tensor:
        """Runs in a worker: everything that can be done without the device."""
        if self.as_bytes:
            return torch.from_numpy(pixels)
        images = pixels.astype(np.float32, order="C")
        if self.where == "host":
            # By whole rows of pixels: five times as fast as by pixels of three channels.
            rows = images.reshape(*images.shape[:2], -1)
            rows *= np.tile(self._scale, images.shape[2])
            rows -= np.tile(self._shift, images.shape[2])
        return torch.from_numpy(images)

    def images(self, images: Tensor) -> Tensor:
        """Runs in the loop. Pixels become planes by a change of strides: no copy."""
        moved = images.to(self.device, non_blocking=True).permute(0, 3, 1, 2)
        if self.as_bytes:
            moved = moved.float()
        if self.where == "device":
            moved = moved * self._device_scale - self._device_shift
        return moved

    def labels(self, labels: Tensor) -> Tensor:
        return labels.to(self.device, non_blocking=True)


_Prepared = tuple[Tensor | None, Tensor | None]


class _Feed:
    """What training and validation share: wanted samples, prepared on the host, then moved."""

    def __init__(self, source: Source, arrival: Arrival, wanted: Wanted) -> None:
        self.source = source
        self.arrival = arrival
        self.wanted = wanted

    def _moved(self, prepared: _Prepared) -> MicroBatch:
        images, labels = prepared
        return MicroBatch(
            None if images is None else self.arrival.images(images),
            None if labels is None else self.arrival.labels(labels),
        )

    def _labels(self, ids: Ids) -> Tensor | None:
        return torch.from_numpy(self.source.labels(ids)) if self.wanted.labels else None


class TrainingFeed(_Feed):
    """The micro-batches of a run, from any update on."""

    def __init__(
        self,
        source: Source,
        order: Order,
        augmentation: Augmentation,
        arrival: Arrival,
        wanted: Wanted = _EVERYTHING,
    ) -> None:
        super().__init__(source, arrival, wanted)
        self.order = order
        self.augmentation = augmentation

    def micro_batches(self, places: Iterable[Place], hands: Hands) -> Generator[MicroBatch]:
        """In the order of the places, prepared ahead."""
        jobs = (lambda place=place: self._prepare(place) for place in places)
        with closing(prefetch(jobs, hands.workers, hands.depth)) as prepared:
            for one in prepared:
                yield self._moved(one)

    def _prepare(self, place: Place) -> _Prepared:
        ids = self.order.ids(place)
        return self._images(ids, place), self._labels(ids)

    def _images(self, ids: Ids, place: Place) -> Tensor | None:
        if not self.wanted.images:
            return None
        seed, epoch = self.order.seed, self.order.epoch(place)
        pixels = self.augmentation(self.source.pixels(ids), ids, seed, epoch)
        return self.arrival.on_host(pixels)


class ValidationFeed(_Feed):
    """Every sample of a source once, in order, in batches of one size.

    The last batch is filled up with its last sample, which counts once: a network may round
    differently for another size, and a line of stages passes one size only.
    """

    def __init__(
        self, source: Source, batch_size: int, arrival: Arrival, wanted: Wanted = _EVERYTHING
    ) -> None:
        super().__init__(source, arrival, wanted)
        self.size = min(batch_size, len(source))
        self.count = -(-len(source) // self.size)

    def batches(self, numbers: Iterable[int], hands: Hands) -> Generator[Batch]:
        """Those of these numbers, prepared ahead."""
        jobs = (lambda number=number: self._prepare(number) for number in numbers)
        with closing(prefetch(jobs, hands.workers, hands.depth)) as prepared:
            for samples, one in prepared:
                moved = self._moved(one)
                yield Batch(moved.images, moved.labels, samples)

    def _prepare(self, number: int) -> tuple[int, _Prepared]:
        first, last = number * self.size, len(self.source) - 1
        ids = np.minimum(np.arange(first, first + self.size, dtype=np.int64), last)
        pixels = self.source.pixels(ids) if self.wanted.images else None
        images = None if pixels is None else self.arrival.on_host(pixels)
        return min(self.size, last + 1 - first), (images, self._labels(ids))


class SyntheticFeed:
    """One random micro-batch that lies on the device and is used again and again."""

    def __init__(
        self, shape: tuple[int, int, int, int], classes: int, device: torch.device, seed: int = 0
    ) -> None:
        chance = torch.Generator().manual_seed(seed)
        images = torch.randn(shape, generator=chance).to(memory_format=torch.channels_last)
        labels = torch.randint(classes, shape[:1], generator=chance)
        self.resident = MicroBatch(images.to(device), labels.to(device))

    def micro_batches(self, places: Iterable[Place], hands: Hands) -> Generator[MicroBatch]:
        """The same one for every place."""
        del hands
        return (self.resident for _ in places)
