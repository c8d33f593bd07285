"""Forward-only passes through the line: images enter at the first stage, logits leave the last.

Every process passes the same number of batches, all of the one size that its borders tell.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from convoy.parallel.link import Group, Moving
from convoy.parallel.slice import Bundle
from convoy.parallel.stage import Borders, links_of

T = TypeVar("T")


class Inference:
    """The stages of one process, in a line that goes around once for each of them.

    As many batches as processes take turns: all of them pass the first stage, then the second, …
    so that no process waits for a batch that is on its way around.
    """

    def __init__(
        self, slices: Sequence[nn.Module], borders: Sequence[Borders], group: Group
    ) -> None:
        self.slices = list(slices)
        place, processes = dist.get_rank(group), dist.get_world_size(group)
        self._together = processes if len(slices) > 1 else 1
        self._stations = [
            _Station(layers, border, group, place + turn * processes)
            for turn, (layers, border) in enumerate(zip(slices, borders, strict=True))
        ]
        self._stations[0].is_first = place == 0
        self._stations[-1].is_last = place == processes - 1

    def run(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        """The logits of each batch on the last stage, None elsewhere; to be read to the end.

        Images are needed on the first stage only. The network is left as it was.
        """
        with _evaluating(self.slices):
            begun: Moving | None = None
            for step, following in _with_next(self._steps(batches)):
                given = step.station.given(step.images, begun or step.station.receive())
                begun = _begin_early(step, following)
                made = step.station.forward(given)
                if step.station is self._stations[-1]:
                    yield made[0] if step.station.is_last else None
            for station in self._stations:
                station.sent.wait()

    def _steps(self, batches: Iterable[Tensor | None]) -> Iterator["_Step"]:
        rest = enumerate(batches)
        while turn := list(islice(rest, self._together)):
            for station in self._stations:
                for number, images in turn:
                    yield _Step(station, number, images)


class _Station:
    """One stage that only goes forward."""

    def __init__(self, layers: nn.Module, borders: Borders, group: Group, stage: int) -> None:
        self.layers = layers
        self.size = borders.incoming[0]
        self.is_first = self.is_last = False
        self.back, self.onward = links_of(borders, group, stage)
        self.sent = Moving((), [])

    def receive(self) -> Moving:
        return Moving((), []) if self.is_first else self.back.receive()

    def given(self, images: Tensor | None, arriving: Moving) -> Bundle:
        if not self.is_first:
            return arriving.wait()
        assert images is not None, "the first stage needs images"
        assert tuple(images.shape) == self.size, "pad the last batch: sizes are fixed"
        return (images,)

    def forward(self, given: Bundle) -> Bundle:
        made = self._compute(given)
        self.sent.wait()  # at most one batch is on its way, however slow the next stage is
        self.sent = self.sent if self.is_last else self.onward.send(made)
        return made

    @torch.inference_mode()
    def _compute(self, given: Bundle) -> Bundle:
        made: Bundle = self.layers(*given)
        return made


@dataclass(frozen=True)
class _Step:
    station: _Station
    number: int
    images: Tensor | None


def _begin_early(step: _Step, following: _Step | None) -> Moving | None:
    """While one batch is computed the next may arrive; not the same one, which is still here."""
    if following is None or following.number == step.number:
        return None
    return following.station.receive()


@contextmanager
def _evaluating(slices: Sequence[nn.Module]) -> Iterator[None]:
    were_training = [layers.training for layers in slices]
    for layers in slices:
        layers.eval()
    try:
        yield
    finally:
        for layers, was_training in zip(slices, were_training, strict=True):
            layers.train(was_training)


def _with_next(items: Iterable[T]) -> Iterator[tuple[T, T | None]]:
    """Each item with the one that follows."""
    rest = iter(items)
    for current in rest:
        for following in rest:
            yield current, following
            current = following
        yield current, None
