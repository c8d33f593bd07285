"""The training data of a run, for the user's own loops."""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Unpack

from convoy.api.keywords import NamedOptions
from convoy.api.requests import options_from_keywords
from convoy.api.runs import own_torch_settings
from convoy.config.resolve import refuse_unavailable, resolve
from convoy.run.start import fix_machine_values, inspect_data

if TYPE_CHECKING:
    from torch import Tensor

    from convoy.run.open_feed import OpenFeed


class TrainingLoader:
    """The training micro-batches of a dataset, augmented and in the order of a run.

    Yields tuples (images, labels). With mixup or cutmix it yields (images, labels, weights), where
    labels and weights have the shape (labels per sample, samples).
    """

    def __init__(self, opened: "OpenFeed") -> None:
        self._opened = opened

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names."""
        return tuple(self._opened.source.class_names)

    def __len__(self) -> int:
        """Micro-batches of all epochs."""
        plan = self._opened.plan
        return plan.loop.updates * plan.batch.micro_batches

    def __iter__(self) -> "Iterator[tuple[Tensor, ...]]":
        from convoy.batch import MixedTargets

        indices = self._opened.indices(0, len(self))
        with closing(self._opened.feed.micro_batches(indices, self._opened.options)) as batches:
            for images, targets in batches:
                assert images is not None and targets is not None
                if isinstance(targets, MixedTargets):
                    yield images, targets.labels, targets.weights
                else:
                    yield images, targets


def create_loader(**options: Unpack[NamedOptions]) -> TrainingLoader:
    """Open a training dataset by name, for `Infeed` or a plain loop.

    Args:
        **options: Options of `train` about data, batches and length, such as `data="cifar10"`,
            `data_dir="data"`, `micro_batch_size=32`, `epochs=2` or `seed=1`.
    """
    from convoy.run.open_feed import open_feed

    keywords: dict[str, Any] = dict(options)
    with own_torch_settings():
        resolved = resolve(options_from_keywords(keywords).to_request())
        refuse_unavailable(resolved, data_only=True)
        resolved, _ = inspect_data(resolved)
        return TrainingLoader(open_feed(fix_machine_values(resolved, 1).config))
