"""Forward-only passes through the line: images enter at the first stage, logits leave the last.

Every process passes the same number of batches, all of the one size that its borders tell.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from convoy.parallel.link import Group, Link, Moving
from convoy.parallel.slice import Bundle
from convoy.parallel.stage import Borders

T = TypeVar("T")


class Inference:
    """One stage of a line that only goes forward. While it computes, the next batch arrives."""

    def __init__(self, layers: nn.Module, borders: Borders, group: Group) -> None:
        stage, stages = dist.get_rank(group), dist.get_world_size(group)
        self.layers = layers
        self.size = borders.incoming[0]
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        self._back = Link(borders.incoming, borders.device, group, stage - 1)
        self._onward = Link(borders.outgoing, borders.device, group, stage + 1)

    def run(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        """The logits of each batch on the last stage, None elsewhere; to be read to the end.

        Images are needed on the first stage only. The network is left as it was.
        """
        was_training = self.layers.training
        self.layers.eval()
        arriving = sent = Moving((), [])
        for index, (images, is_more) in enumerate(_with_more(batches)):
            if index == 0:
                arriving = self._receive()
            given = self._given(images, arriving)
            if is_more:
                arriving = self._receive()
            made = self._forward(given)
            sent.wait()  # at most one batch is on its way, however slow the next stage is
            sent = sent if self.is_last else self._onward.send(made)
            yield made[0] if self.is_last else None
        sent.wait()
        self.layers.train(was_training)

    def _receive(self) -> Moving:
        return Moving((), []) if self.is_first else self._back.receive()

    def _given(self, images: Tensor | None, arriving: Moving) -> Bundle:
        if not self.is_first:
            return arriving.wait()
        assert images is not None, "the first stage needs images"
        assert tuple(images.shape) == self.size, "pad the last batch: sizes are fixed"
        return (images,)

    @torch.inference_mode()
    def _forward(self, given: Bundle) -> Bundle:
        made: Bundle = self.layers(*given)
        return made


def _with_more(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each item, and whether another one follows."""
    rest = iter(items)
    for current in rest:
        for following in rest:
            yield current, True
            current = following
        yield current, False
