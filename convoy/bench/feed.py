"""The training feed of a run without the run, timed: emptied, consumed by a model, step by step."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from convoy.data.loader import (
    LoaderOptions,
    MicroBatch,
    MicroBatchIndex,
    SyntheticFeed,
    TrainingFeed,
)
from convoy.data.source import View
from convoy.engine.update import targets_of
from convoy.optim.update_rules import StepContext
from convoy.run.build import build
from convoy.run.open_feed import OpenFeed
from convoy.run.process import ProcessContext

ELEMENTS = 512  # of an epoch, if it has so many: what the reference's program measures

_GIGA = 1e9


@dataclass(frozen=True)
class EpochSpeed:
    """One epoch of a benchmark; an element is one micro-batch."""

    elements: int
    bytes: int
    seconds: float
    images: int

    @property
    def elements_per_second(self) -> float:
        return self.elements / self.seconds

    @property
    def bandwidth(self) -> float:
        """In GB/s."""
        return self.bytes / _GIGA / self.seconds

    def as_json(self) -> dict[str, float]:
        """The shape is stable, and all are floats."""
        return {
            "elements_processed": float(self.elements),
            "total_bytes_processed": float(self.bytes),
            "time_elapsed": self.seconds,
            "elements_per_second": self.elements_per_second,
            "bandwidth": self.bandwidth,
        }

    def line(self, number: int) -> str:
        return (
            f"epoch {number}: {self.elements:,} elements in {self.seconds:.3f} s, "
            f"{self.elements_per_second:,.1f} elements/s, {self.bandwidth:.3f} GB/s"
        )


def mean_line(epochs: Sequence[EpochSpeed]) -> str:
    """All epochs, in the words that programs look for."""
    images = sum(epoch.images for epoch in epochs)
    seconds = sum(epoch.seconds for epoch in epochs)
    return f"mean throughput: {images / seconds:.1f} imgs/sec"


def bench_feed(
    opened: OpenFeed, epochs: int = 2, elements: int | None = None, copy: bool = True
) -> Iterator[EpochSpeed]:
    """One result for each epoch; the feed runs on across epochs, as in training.

    With `copy` each element is copied, as on its way to a device.
    """
    elements = elements or min(ELEMENTS, opened.elements_per_epoch)
    images = elements * opened.plan.batch.micro_batch_size
    copies: list[Tensor] = []
    with closing(opened.feed.on_host(opened.indices(0, epochs * elements), opened.options)) as feed:
        for _ in range(epochs):
            began, num_bytes = perf_counter(), 0
            for element in islice(feed, elements):
                tensors = [one for one in (element.images, element.labels) if one is not None]
                num_bytes += sum(tensor.nbytes for tensor in tensors)
                if copy:
                    copies = copies or [torch.empty_like(tensor) for tensor in tensors]
                    for target, tensor in zip(copies, tensors, strict=True):
                        np.copyto(target.numpy(), tensor.numpy())
            yield EpochSpeed(elements, num_bytes, perf_counter() - began, images)


Consumer = Callable[[Iterable[MicroBatch]], None]  # uses up the micro-batches of one update


def discard(micro_batches: Iterable[MicroBatch]) -> None:
    """As fast as they come."""
    for _ in micro_batches:
        pass


def wait_for_images(images_per_second: float, micro_batches: Iterable[MicroBatch]) -> None:
    """As slowly as a device of that speed, and without work for the cores."""
    for batch in micro_batches:
        assert batch.images is not None
        until = perf_counter() + len(batch.images) / images_per_second
        while (left := until - perf_counter()) > 0:
            sleep(left)


class ModelConsumer:
    """Trains at a learning rate of zero, so that the weights stay as they are."""

    def __init__(self, opened: OpenFeed, context: ProcessContext, scratch: Path) -> None:
        self.parts = build(context, opened.source, None, scratch)

    def __call__(self, micro_batches: Iterable[MicroBatch]) -> None:
        inputs = ((batch.images, targets_of(batch)) for batch in micro_batches)
        self.parts.trainer.step(inputs, StepContext(0.0))


class Timed(NamedTuple):
    """What is timed: a feed, how it is loaded, and who consumes it."""

    feed: TrainingFeed | SyntheticFeed
    options: LoaderOptions
    consumer: Consumer = discard


_LONG = 5  # times as long as necessary: then even the first, slow measurement will do
_ROUNDS = 3
_TRANSFER, _MIX = "transfer", "mix"


@dataclass(frozen=True)
class StepCost:
    """One step of loading an image, measured alone."""

    name: str
    seconds: float  # for one image
    by_workers: bool  # or by the training loop


class FeedTimer:
    """Every measurement takes other samples than the one before, as long as there are others."""

    def __init__(self, opened: OpenFeed) -> None:
        self._opened = opened
        self._micro_batches = opened.plan.batch.micro_batches
        self._update = opened.feed.order.updates_per_epoch // 2  # a benchmark began with the first

    def seconds(self, timed: Timed, updates: int, same_samples: bool = False) -> float:
        """How long so many updates take, from the start of the workers on."""
        first = 0 if same_samples else self._next(updates)
        indices = self._opened.indices(first * self._micro_batches, updates * self._micro_batches)
        began = perf_counter()
        with closing(timed.feed.micro_batches(indices, timed.options)) as stream:
            for _ in range(updates):
                timed.consumer(islice(stream, self._micro_batches))
            _synchronize(self._opened.device)
            return perf_counter() - began

    def updates_in(self, timed: Timed, seconds: float) -> int:
        """How many take as long, or longer; when this is known, it has warmed up."""
        updates, spent = 1, self.seconds(timed, 1)
        if spent < _LONG * seconds:
            spent = self.seconds(timed, 1)
        while spent < seconds:
            updates *= 2
            spent = self.seconds(timed, updates)
        return updates

    def rates(self, several: Sequence[Timed], seconds: float) -> list[float]:
        """Images per second of each, measured in turn, so that other load meets all alike."""
        samples = self._opened.plan.batch.samples_per_update
        updates = [self.updates_in(timed, seconds / _ROUNDS) for timed in several]
        rounds = [
            [
                count * samples / self.seconds(timed, count)
                for timed, count in zip(several, updates, strict=True)
            ]
            for _ in range(_ROUNDS)
        ]
        return [median(rates) for rates in zip(*rounds, strict=True)]

    def steps(self, seconds: float) -> tuple[StepCost, ...]:
        """The costs of an image, step by step, by one worker alone."""
        view = self._opened.view
        spent, batches = self._laps(view), 1
        if sum(spent.values()) < _LONG * seconds:
            spent, batches = dict.fromkeys(spent, 0.0), 0
        while sum(spent.values()) < seconds:
            for name, lap in self._laps(view).items():
                spent[name] = spent.get(name, 0.0) + lap
            batches += 1
        images = batches * self._opened.plan.batch.micro_batch_size
        by_worker = self._opened.plan.config.mixing.hostside_image_mixing
        in_loop = {_TRANSFER} if by_worker else {_TRANSFER, _MIX}
        return tuple(
            StepCost(name, lap / images, name not in in_loop) for name, lap in spent.items()
        )

    def _laps(self, view: View) -> dict[str, float]:
        """Seconds of each step of one micro-batch, from its ids to the device."""
        feed, transfer, device = self._opened.feed, self._opened.feed.transfer, self._opened.device
        index = MicroBatchIndex(self._next(1), 0)
        ids, (epoch, number) = feed.order.ids(index), feed.order.place(index)
        mix = feed.mixing.draw(epoch, number, len(ids))
        mixes = mix.own is not None or mix.box is not None
        buffer = transfer.allocate(len(ids), view.size)
        pixels = buffer.numpy() if transfer.as_bytes else np.empty(buffer.shape, np.uint8)
        lap, spent = _stopwatch()
        view(ids, epoch, pixels, lap)
        if not transfer.as_bytes:
            transfer.normalize_into(buffer, pixels)
            lap("normalize" if transfer.where == "host" else "collate")
        if mixes and mix.by_worker:
            buffer = mix.images(buffer)
            lap(_MIX)
        moved = transfer.images(buffer)
        _synchronize(device)
        lap(_TRANSFER)
        mix.on_device(moved)
        _synchronize(device)
        if mixes and not mix.by_worker:
            lap(_MIX)
        return spent

    def _next(self, updates: int) -> int:
        """The first of so many updates whose samples have not been used."""
        first, self._update = self._update, self._update + updates
        return first


def _stopwatch() -> tuple[Callable[[str], None], dict[str, float]]:
    """Each call adds the time since the one before to the step of that name."""
    spent: dict[str, float] = defaultdict(float)
    last = perf_counter()

    def lap(name: str) -> None:
        nonlocal last
        now = perf_counter()
        spent[name] += now - last
        last = now

    return lap, spent


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
