"""Measures a feed: what each step costs for an image, and how many images a consumer gets."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from convoy.assemble.consumers import Consumer
from convoy.assemble.open_feed import OpenFeed
from convoy.data.feed import Hands, SyntheticFeed, TrainingFeed
from convoy.data.mix import Mix
from convoy.data.order import Place
from convoy.data.steps import walk
from convoy.data.view import View
from convoy.report.diagnosis import StepCost

_LONG = 5  # times as long as wanted: then even the first, slow measurement will do
_ROUNDS = 3
_MOVE, _MIX = "transfer", "mix"

Laps = dict[str, float]


class Fed(NamedTuple):
    """A feed, who prepares it, and who takes it."""

    feed: TrainingFeed | SyntheticFeed
    hands: Hands
    consumer: Consumer


class Stopwatch:
    """Every measurement takes other samples than the one before, as long as there are others."""

    def __init__(self, opened: OpenFeed) -> None:
        self._micro_batches = opened.plan.batch.micro_batches
        self._samples = opened.plan.batch.samples_per_update
        self._device = opened.device
        self._update = opened.feed.order.updates_per_epoch // 2  # a benchmark began with the first

    def seconds(self, fed: Fed, updates: int) -> float:
        """How long so many updates take, from the first wish on."""
        return self._seconds(fed, updates, self._places(updates))

    def seconds_again(self, fed: Fed, updates: int) -> float:
        """The same with the same samples each time."""
        return self._seconds(fed, updates, self._places_of(range(updates)))

    def _seconds(self, fed: Fed, updates: int, places: Iterator[Place]) -> float:
        began = perf_counter()
        with closing(fed.feed.micro_batches(places, fed.hands)) as stream:
            for _ in range(updates):
                fed.consumer(stream)
            _finish(self._device)
            return perf_counter() - began

    def updates_in(self, fed: Fed, seconds: float) -> int:
        """How many take as long, or longer; when this is known, it has warmed up."""
        updates, spent = 1, self.seconds(fed, 1)
        if spent < _LONG * seconds:
            spent = self.seconds(fed, 1)
        while spent < seconds:
            updates *= 2
            spent = self.seconds(fed, updates)
        return updates

    def rates(self, several: Sequence[Fed], seconds: float) -> list[float]:
        """Images per second of each, measured in turn: what else runs here meets all alike."""
        updates = [self.updates_in(one, seconds / _ROUNDS) for one in several]
        rounds = [
            [
                count * self._samples / self.seconds(one, count)
                for one, count in zip(several, updates, strict=True)
            ]
            for _ in range(_ROUNDS)
        ]
        return [median(one) for one in zip(*rounds, strict=True)]

    def steps(self, opened: OpenFeed, seconds: float) -> tuple[StepCost, ...]:
        """The costs of an image, step by step, by one worker without rivals."""
        laps = partial(_laps, opened, opened.view)
        spent, batches = laps(next(self._places(1))), 1
        if sum(spent.values()) < _LONG * seconds:
            spent, batches = dict.fromkeys(spent, 0.0), 0
        while sum(spent.values()) < seconds:
            for name, lap in laps(next(self._places(1))).items():
                spent[name] = spent.get(name, 0.0) + lap
            batches += 1
        images = batches * opened.plan.batch.micro_batch_size
        in_loop = {_MOVE} if opened.plan.config.mixing.hostside_image_mixing else {_MOVE, _MIX}
        return tuple(
            StepCost(name, lap / images, name not in in_loop) for name, lap in spent.items()
        )

    def _places(self, updates: int) -> Iterator[Place]:
        first, self._update = self._update, self._update + updates
        return self._places_of(range(first, first + updates))

    def _places_of(self, updates: range) -> Iterator[Place]:
        return (Place(update, micro) for update in updates for micro in range(self._micro_batches))


def _laps(opened: OpenFeed, view: View, place: Place) -> Laps:
    """One micro-batch, from its ids to the device."""
    feed, arrival = opened.feed, opened.feed.arrival
    ids, epoch = feed.order.ids(place), feed.order.epoch(place)
    spent: Laps = {}
    lap = _lapping(spent)
    room = arrival.room(len(ids), view.size)
    pixels = room.numpy() if arrival.as_bytes else np.empty(room.shape, np.uint8)
    for name in walk(view, ids, epoch, pixels):
        lap(name)
    if not arrival.as_bytes:
        arrival.put(pixels, room)
        lap("normalize" if arrival.where == "host" else "collate")
    mix = feed.mixing.draw(epoch, feed.order.number(place), len(ids))
    ready = mix.on_host(room)
    _add_mixing(mix, mix.by_worker, lap)
    assert ready is not None
    moved = arrival.images(ready)
    _finish(opened.device)
    lap(_MOVE)
    mix.on_device(moved)
    _finish(opened.device)
    _add_mixing(mix, not mix.by_worker, lap)
    return spent


def _add_mixing(mix: Mix, was_done: bool, lap: Callable[[str], None]) -> None:
    """There is a time for it only where something is mixed."""
    if was_done and (mix.own is not None or mix.box is not None):
        lap(_MIX)


def _lapping(spent: Laps) -> Callable[[str], None]:
    """Each call adds the time since the one before."""
    last = perf_counter()

    def lap(name: str) -> None:
        nonlocal last
        now = perf_counter()
        spent[name] = spent.get(name, 0.0) + now - last
        last = now

    return lap


def _finish(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
