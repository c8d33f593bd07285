"""From samples to micro-batches on the device: looked at, put together, moved."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from convoy.data.arrival import Arrival
from convoy.data.infeed import prefetch
from convoy.data.mix import UNMIXED, Mix, Mixing
from convoy.data.order import Order, Place
from convoy.data.source import Ids, Labels
from convoy.data.view import View

_MOST_AHEAD = 2**30  # bytes of batches that are prepared ahead, with at least one batch
_MOST_AT_ONCE = 2**23  # bytes of images that a worker has in hand before they are normalized


@dataclass(frozen=True)
class Wanted:
    """What a stage needs of a sample: the first one images, the last one labels."""

    images: bool = True
    labels: bool = True


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one pass; None for what this process does not want."""

    images: Tensor | None  # (micro, channels, height, width)
    labels: Tensor | None  # (micro,); mixed ones (several, micro)
    shares: Tensor | None = field(default=None, kw_only=True)  # of mixed labels, as many


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
    mix: Mix


@dataclass
class _Tray:
    """One batch on the host, while its pieces are put into it."""

    pick: _Pick
    images: Tensor | None
    labels: Tensor | None
    missing: int  # pieces
    unread: list[int] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def is_complete_with(self, unread: Iterable[int]) -> bool:
        """Whether the piece that has just been put in was the last one."""
        with self.lock:
            self.unread.extend(unread)
            self.missing -= 1
            return self.missing == 0


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
        return max(1, min(depth, _MOST_AHEAD // self._bytes_of(size)))

    def _bytes_of(self, images: int) -> int:
        return images * 3 * self.samples.view.size**2 * self.arrival.dtype.itemsize

    def _jobs(
        self, picks: Iterable[_Pick], piece: int, laid: deque[_Tray]
    ) -> Iterator[Callable[[], None]]:
        for pick in picks:
            starts = range(0, len(pick.ids), piece)
            tray = self._tray(pick, len(starts))
            laid.append(tray)
            for first in starts:
                yield partial(self._fill, tray, slice(first, first + piece))

    def _tray(self, pick: _Pick, pieces: int) -> _Tray:
        count, size = len(pick.ids), self.samples.view.size
        # Two batches of numbers would be too much: they stay bytes until they are used.
        late = 2 * self._bytes_of(count) > _MOST_AHEAD and not pick.mix.by_worker
        images = self.arrival.room(count, size, late) if self.wanted.images else None
        labels = self.samples.labels(pick.ids) if self.wanted.labels else None
        return _Tray(pick, images, None if labels is None else torch.from_numpy(labels), pieces)

    def _fill(self, tray: _Tray, part: slice) -> None:
        """Runs in a worker."""
        if tray.images is None:
            return
        unread = self._look(tray.pick.ids[part], tray.pick.epoch, tray.images[part])
        if tray.is_complete_with(part.start + place for place in unread):
            tray.images = tray.pick.mix.on_host(tray.images)

    def _look(self, ids: Ids, epoch: int, room: Tensor) -> list[int]:
        """Bytes are written where they shall lie, numbers by way of bytes, a few at a time."""
        if room.dtype == torch.uint8:
            return list(self.samples.view(ids, epoch, room.numpy()))
        unread: list[int] = []
        few = max(1, _MOST_AT_ONCE // (3 * self.samples.view.size**2))
        for start in range(0, len(ids), few):
            some = slice(start, start + few)
            pixels = np.empty(room[some].shape, np.uint8)
            unread += (start + place for place in self.samples.view(ids[some], epoch, pixels))
            self.arrival.put(pixels, room[some])
        return unread

    def _moved(self, tray: _Tray) -> MicroBatch:
        return MicroBatch(
            None if tray.images is None else self.arrival.images(self._normalized(tray.images)),
            None if tray.labels is None else self.arrival.labels(tray.labels),
        )

    def _normalized(self, images: Tensor) -> Tensor:
        if images.dtype == self.arrival.dtype:
            return images
        room = self.arrival.room(len(images), self.samples.view.size)
        self.arrival.put(images.numpy(), room)
        return room


class TrainingFeed(_Feed):
    """The micro-batches of a run, from any update on."""

    def __init__(
        self,
        samples: Samples,
        order: Order,
        arrival: Arrival,
        wanted: Wanted = _EVERYTHING,
        mixing: Mixing = UNMIXED,
    ) -> None:
        super().__init__(samples, arrival, wanted)
        self.order = order
        self.mixing = mixing

    def micro_batches(self, places: Iterable[Place], hands: Hands) -> Generator[MicroBatch]:
        """In the order of the places, prepared ahead."""
        with closing(self._trays_at(places, hands)) as trays:
            for tray in trays:
                yield self._mixed(tray)  # no name for it here: it would live for one more batch

    def _mixed(self, tray: _Tray) -> MicroBatch:
        moved, mix = self._moved(tray), tray.pick.mix
        labels, shares = mix.targets(moved.labels)
        return MicroBatch(mix.on_device(moved.images), labels, shares=shares)

    def on_host(self, places: Iterable[Place], hands: Hands) -> Generator[MicroBatch]:
        """The same before they are moved: rows of pixels, in the type in which they travel."""
        with closing(self._trays_at(places, hands)) as trays:
            for tray in trays:
                yield MicroBatch(tray.images, tray.labels)

    def _trays_at(self, places: Iterable[Place], hands: Hands) -> Generator[_Tray]:
        picks = (self._pick(place) for place in places)
        return self._trays(picks, self.order.batch.micro_batch_size, hands)

    def _pick(self, place: Place) -> _Pick:
        ids, epoch = self.order.ids(place), self.order.epoch(place)
        return _Pick(ids, epoch, self.mixing.draw(epoch, self.order.number(place), len(ids)))


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
        picks = (_Pick(self._ids(number), 0, Mix(self.size)) for number in numbers)
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
