"""Time the training feed of a run: alone, with a model, and step by step."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
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
from convoy.engine.trainer import Trainer
from convoy.optim.update_rules import StepContext
from convoy.run.open_feed import OpenFeed

MAX_ELEMENTS = 512  # per epoch, as the reference program measures


@dataclass(frozen=True)
class EpochThroughput:
    """The throughput of one epoch; an element is one micro-batch."""

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
        return self.bytes / 1e9 / self.seconds

    def as_json(self) -> dict[str, float]:
        """The structure is stable, and all values are floats."""
        return {
            "elements_processed": float(self.elements),
            "total_bytes_processed": float(self.bytes),
            "time_elapsed": self.seconds,
            "elements_per_second": self.elements_per_second,
            "bandwidth": self.bandwidth,
        }

    def as_text(self, number: int) -> str:
        return (
            f"epoch {number}: {self.elements:,} elements in {self.seconds:.3f} s, "
            f"{self.elements_per_second:,.1f} elements/s, {self.bandwidth:.3f} GB/s"
        )


def mean_throughput_text(epochs: Sequence[EpochThroughput]) -> str:
    """Format the mean of all epochs in the form that benchmark scripts parse."""
    images = sum(epoch.images for epoch in epochs)
    seconds = sum(epoch.seconds for epoch in epochs)
    return f"mean throughput: {images / seconds:.1f} imgs/sec"


def bench_feed(
    opened: OpenFeed, epochs: int = 2, elements: int | None = None, copy: bool = True
) -> Iterator[EpochThroughput]:
    """Yield the throughput of each epoch; the feed continues across epochs, as in training.

    With `copy` each element is copied, as in a transfer to a device.
    """
    elements = elements or min(MAX_ELEMENTS, opened.micro_batches_per_epoch)
    images = elements * opened.plan.batch.micro_batch_size
    copies: list[Tensor] = []
    indices = opened.indices(0, epochs * elements)
    with closing(opened.feed.host_batches(indices, opened.options)) as batches:
        for _ in range(epochs):
            start, num_bytes = perf_counter(), 0
            for element in islice(batches, elements):
                pair = (element.images, element.labels)
                tensors = [tensor for tensor in pair if tensor is not None]
                num_bytes += sum(tensor.nbytes for tensor in tensors)
                if copy:
                    copies = copies or [torch.empty_like(tensor) for tensor in tensors]
                    for target, tensor in zip(copies, tensors, strict=True):
                        np.copyto(target.numpy(), tensor.numpy())
            yield EpochThroughput(elements, num_bytes, perf_counter() - start, images)


Consumer = Callable[[Iterable[MicroBatch]], None]  # consumes the micro-batches of one update


def discard(micro_batches: Iterable[MicroBatch]) -> None:
    """Discard micro-batches as fast as they arrive."""
    for _ in micro_batches:
        pass


def simulate_model(images_per_second: float, micro_batches: Iterable[MicroBatch]) -> None:
    """Consume micro-batches at the speed of a device, without load on the cores."""
    for batch in micro_batches:
        assert batch.images is not None
        deadline = perf_counter() + len(batch.images) / images_per_second
        while (remaining := deadline - perf_counter()) > 0:
            sleep(remaining)


def train_with_zero_lr(trainer: Trainer, micro_batches: Iterable[MicroBatch]) -> None:
    """Train with a learning rate of zero, so that the weights do not change."""
    trainer.update_step(micro_batches, StepContext(0.0))


class TimedFeed(NamedTuple):
    """What is timed: a feed, its loader options, and its consumer."""

    feed: TrainingFeed | SyntheticFeed
    options: LoaderOptions
    consumer: Consumer = discard


_SLOW_WARMUP_FACTOR = 5  # a warmup this many times longer than needed is not repeated
_ROUNDS = 3
_TRANSFER, _MIX = "transfer", "mix"


@dataclass(frozen=True)
class StepCost:
    """The cost of one step of loading an image, measured separately."""

    name: str
    seconds: float  # per image
    by_workers: bool  # else by the training loop


class FeedTimer:
    """Times a feed. Each measurement reads new samples until all have been used."""

    def __init__(self, opened: OpenFeed) -> None:
        self._open_feed = opened
        self._micro_batches = opened.plan.batch.micro_batches
        self._update = opened.feed.order.updates_per_epoch // 2  # `bench_feed` reads the first ones

    def seconds(self, timed: TimedFeed, updates: int, same_samples: bool = False) -> float:
        """Return the seconds that a number of updates takes, including the start of the workers."""
        first = 0 if same_samples else self._reserve_updates(updates)
        indices = self._open_feed.indices(
            first * self._micro_batches, updates * self._micro_batches
        )
        start = perf_counter()
        with closing(timed.feed.micro_batches(indices, timed.options)) as stream:
            for _ in range(updates):
                timed.consumer(islice(stream, self._micro_batches))
            _synchronize(self._open_feed.device)
            return perf_counter() - start

    def calibrate_updates(self, timed: TimedFeed, seconds: float) -> int:
        """Return how many updates take at least this long; this also warms up the feed."""
        updates, elapsed = 1, self.seconds(timed, 1)
        if elapsed < _SLOW_WARMUP_FACTOR * seconds:
            elapsed = self.seconds(timed, 1)
        while elapsed < seconds:
            updates *= 2
            elapsed = self.seconds(timed, updates)
        return updates

    def rates(self, timed_feeds: Sequence[TimedFeed], seconds: float) -> list[float]:
        """Return images per second of each, measured in turn so that other load affects all."""
        samples = self._open_feed.plan.batch.samples_per_update
        updates = [self.calibrate_updates(timed, seconds / _ROUNDS) for timed in timed_feeds]
        rounds = [
            [
                count * samples / self.seconds(timed, count)
                for timed, count in zip(timed_feeds, updates, strict=True)
            ]
            for _ in range(_ROUNDS)
        ]
        return [median(rates) for rates in zip(*rounds, strict=True)]

    def steps(self, seconds: float) -> tuple[StepCost, ...]:
        """Return the costs of an image, step by step, in a single worker."""
        step_seconds, batches = self._time_steps(), 1
        if sum(step_seconds.values()) < _SLOW_WARMUP_FACTOR * seconds:
            step_seconds, batches = dict.fromkeys(step_seconds, 0.0), 0
        while sum(step_seconds.values()) < seconds:
            for name, lap in self._time_steps().items():
                step_seconds[name] = step_seconds.get(name, 0.0) + lap
            batches += 1
        images = batches * self._open_feed.plan.batch.micro_batch_size
        by_worker = self._open_feed.plan.config.mixing.hostside_image_mixing
        in_loop = {_TRANSFER} if by_worker else {_TRANSFER, _MIX}
        return tuple(
            StepCost(name, lap / images, name not in in_loop) for name, lap in step_seconds.items()
        )

    def _time_steps(self) -> dict[str, float]:
        """Return the seconds of each step of one micro-batch, from its ids to the device."""
        feed, view, device = self._open_feed.feed, self._open_feed.view, self._open_feed.device
        transfer = feed.transfer
        index = MicroBatchIndex(self._reserve_updates(1), 0)
        epoch, number, ids = feed.order.locate(index)
        mix = feed.mixing.sample(epoch, number, len(ids))
        by_worker = feed.mixing.config.hostside_image_mixing
        buffer = transfer.allocate(len(ids), view.size)
        pixels = buffer.numpy() if transfer.sends_bytes else np.empty(buffer.shape, np.uint8)
        lap, step_seconds = _stopwatch()
        view(ids, epoch, pixels, lap)
        if not transfer.sends_bytes:
            transfer.normalize_into(buffer, pixels)
            lap("normalize" if transfer.normalize_on == "host" else "collate")
        if mix is not None and by_worker:
            buffer = mix.apply(buffer)
            lap(_MIX)
        images = transfer.to_device(buffer)
        _synchronize(device)
        lap(_TRANSFER)
        if mix is not None and not by_worker:
            mix.apply_channels_first(images)
            _synchronize(device)
            lap(_MIX)
        return step_seconds

    def _reserve_updates(self, updates: int) -> int:
        """Reserve updates whose samples have not been used, and return the first."""
        first, self._update = self._update, self._update + updates
        return first


def _stopwatch() -> tuple[Callable[[str], None], dict[str, float]]:
    """Return a function that adds the time since its last call to the named step."""
    step_seconds: dict[str, float] = defaultdict(float)
    last = perf_counter()

    def lap(name: str) -> None:
        nonlocal last
        now = perf_counter()
        step_seconds[name] += now - last
        last = now

    return lap, step_seconds


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
