"""From samples to micro-batches on the device: looked at, put together, moved."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from convoy.data.arrival import Arrival
from convoy.data.infeed import prefetch
from convoy.data.order import Order, Place
from convoy.data.source import Ids, Labels
from convoy.data.view import View

_MOST_AHEAD = 2**30  # bytes of batches that are prepared ahead, with at least one batch


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

    samples: int  # those that are no filling
    unread: tuple[int, ...] = ()  # places of those whose own image could not be had


@dataclass(frozen=True)
class Hands:
    """How the work of feeding is shared out."""

    workers: int
    depth: int
    piece: int | None = None  # samples that a worker prepares at a time; None: a whole batch


@dataclass(frozen=True)
class Samples:
    """One split as a feed sees it: how the images look, and what they show."""

    view: View
    labels: Callable[[Ids], Labels]
    count: int


@dataclass(frozen=True)
class _Pick:
    """The samples of one batch."""

    ids: Ids
    epoch: int


@dataclass
class _Tray:
    """One batch on the host, while its pieces are put into it."""

    pick: _Pick
    images: Tensor | None
    labels: Tensor | None
    unread: list[int] = field(default_factory=list)


_EVERYTHING = Wanted()


class _Feed:
    """What training and validation share: wanted samples, prepared on the host, then moved."""

    def __init__(self, samples: Samples, arrival: Arrival, wanted: Wanted) -> None:
        self.samples = samples
        self.arrival = arrival
        self.wanted = wanted

    def _trays(self, picks: Iterable[_Pick], size: int, hands: Hands) -> Generator[_Tray]:
        """Filled by the workers, piece by piece, in the order of the picks."""
        laid: deque[_Tray] = deque()
        piece = min(hands.piece or size, size)
        pieces = -(-size // piece)
        ahead = self._batches_ahead(size, hands.depth) * pieces
        jobs = self._jobs(picks, piece, laid)
        with closing(prefetch(jobs, hands.workers, ahead)) as done:
            for number, _ in enumerate(done, 1):
                if number % pieces == 0:
                    yield laid.popleft()

    def _batches_ahead(self, size: int, depth: int) -> int:
        """As many as were asked for, if they do not take too much memory."""
        if not self.wanted.images:
            return depth
        image_bytes = 3 * self.samples.view.size**2 * self.arrival.dtype.itemsize
        return max(1, min(depth, _MOST_AHEAD // (size * image_bytes)))

    def _jobs(
        self, picks: Iterable[_Pick], piece: int, laid: deque[_Tray]
    ) -> Iterator[Callable[[], None]]:
        for pick in picks:
            tray = self._tray(pick)
            laid.append(tray)
            for first in range(0, len(pick.ids), piece):
                yield partial(self._fill, tray, slice(first, first + piece))

    def _tray(self, pick: _Pick) -> _Tray:
        count, size = len(pick.ids), self.samples.view.size
        images = self.arrival.room(count, size) if self.wanted.images else None
        labels = self.samples.labels(pick.ids) if self.wanted.labels else None
        return _Tray(pick, images, None if labels is None else torch.from_numpy(labels))

    def _fill(self, tray: _Tray, part: slice) -> None:
        """Runs in a worker. Bytes are written where they shall lie, numbers by way of bytes."""
        if tray.images is None:
            return
        ids, room = tray.pick.ids[part], tray.images[part]
        pixels = room.numpy() if self.arrival.as_bytes else np.empty(room.shape, np.uint8)
        unread = self.samples.view(ids, tray.pick.epoch, pixels)
        tray.unread.extend(part.start + place for place in unread)
        if not self.arrival.as_bytes:
            self.arrival.put(pixels, room)

    def _moved(self, tray: _Tray) -> MicroBatch:
        return MicroBatch(
            None if tray.images is None else self.arrival.images(tray.images),
            None if tray.labels is None else self.arrival.labels(tray.labels),
        )


class TrainingFeed(_Feed):
    """The micro-batches of a run, from any update on."""

    def __init__(
        self, samples: Samples, order: Order, arrival: Arrival, wanted: Wanted = _EVERYTHING
    ) -> None:
        super().__init__(samples, arrival, wanted)
        self.order = order

    def micro_batches(self, places: Iterable[Place], hands: Hands) -> Generator[MicroBatch]:
        """In the order of the places, prepared ahead."""
        picks = (_Pick(self.order.ids(place), self.order.epoch(place)) for place in places)
        with closing(self._trays(picks, self.order.batch.micro_batch_size, hands)) as trays:
            for tray in trays:
                yield self._moved(tray)


class ValidationFeed(_Feed):
    """Every sample of a source once, in order, in batches of one size.

    The last batch is filled up with its last sample, which counts once: a network may round
    differently for another size, and a line of stages passes one size only.
    """

    def __init__(
        self, samples: Samples, batch_size: int, arrival: Arrival, wanted: Wanted = _EVERYTHING
    ) -> None:
        super().__init__(samples, arrival, wanted)
        self.size = min(batch_size, samples.count)
        self.count = -(-samples.count // self.size)

    def batches(self, numbers: Iterable[int], hands: Hands) -> Generator[Batch]:
        """Those of these numbers, prepared ahead."""
        picks = (_Pick(self._ids(number), 0) for number in numbers)
        with closing(self._trays(picks, self.size, hands)) as trays:
            for tray in trays:
                moved = self._moved(tray)
                own = min(self.size, self.samples.count - int(tray.pick.ids[0]))
                unread = tuple(sorted(tray.unread))
                yield Batch(moved.images, moved.labels, own, unread)

    def _ids(self, number: int) -> Ids:
        first, last = number * self.size, self.samples.count - 1
        return np.minimum(np.arange(first, first + self.size, dtype=np.int64), last)


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
