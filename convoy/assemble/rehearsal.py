"""The network of a run at work, while its feed is measured: nothing is learned, told or kept."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from torch import Tensor

from convoy.assemble.post import Post
from convoy.assemble.training import Material, TrainingRun
from convoy.data.feed import MicroBatch
from convoy.data.photos import AnySource
from convoy.engine.outfeed import Outfeed
from convoy.engine.targets import targets_of
from convoy.optim.step import Step


class Rehearsal:
    """Spends updates at a learning rate of zero, so that the weights stay as they are."""

    def __init__(self, post: Post, source: AnySource, scratch: Path) -> None:
        self._run = TrainingRun(post, Material(source, None, {}), Outfeed(), scratch)
        self._micro_batches = post.plan.batch.micro_batches

    def __call__(self, micro_batches: Iterator[MicroBatch]) -> None:
        taken = islice(micro_batches, self._micro_batches)
        self._run.trainer.update(((one.images, targets_of(one)) for one in taken), Step(0.0))

    def weights(self) -> list[Tensor]:
        """Of all layers."""
        return [one.optimizer.flat.values for one in self._run.holdings]
