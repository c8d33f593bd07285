"""The micro-batches of this process: which of each update it has, and where they come from."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor

from convoy.batch import Mixed, Targets
from convoy.data.loader import LoaderOptions, SyntheticFeed, TrainingFeed
from convoy.data.loader import MicroBatch as LoadedBatch
from convoy.data.order import MicroBatchIndex
from convoy.engine.stopping import REASONS
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.parallel.executor import MicroBatch

_NO_WORKERS = LoaderOptions(workers=0, depth=1)


@dataclass(frozen=True)
class UpdateShare:
    """Which micro-batches of each update pass through this process, and who has the others."""

    micros: Sequence[int]  # counted over all replicas
    control: ControlGroup
    ends: Sequence[int]  # the rank of each replica's last stage, where results arise
    places: Sequence[str] = ()  # of each rank, for people

    @classmethod
    def whole(cls, micro_batches: int) -> "UpdateShare":
        """The share of the only process of a run."""
        return cls(range(micro_batches), ControlGroup(), (0,))

    def agreed_reason(self, reason: str | None, update: int) -> str | None:
        """Why all processes stop, if one of them has to: a signal may reach only one."""
        own = 0 if reason is None else REASONS.index(reason) + 1
        highest = max(self.control.all_gather(SyncPoint.STOP, update, own))
        return REASONS[highest - 1] if highest else None

    def rows_of_all(self, rows: Tensor, micro_batches: int, update: int) -> Tensor:
        """Rows of our micro-batches, of one or more updates → those of all replicas, in order."""
        gathered = self.control.gather(SyncPoint.REPORT, update, rows)
        shape = (-1, micro_batches, rows.shape[1])  # (updates, micro-batches of one replica, …)
        by_replica = [gathered[rank].view(shape) for rank in self.ends]
        return torch.cat(by_replica, dim=1).flatten(0, 1)


def targets_of(batch: LoadedBatch) -> Targets | None:
    """None where this process does not compare."""
    if batch.labels is None or batch.shares is None:
        return batch.labels
    return Mixed(batch.labels, batch.shares)


@dataclass(frozen=True)
class MicroBatches:
    """Our share of every update, out of a feed."""

    feed: TrainingFeed | SyntheticFeed
    hands: LoaderOptions
    share: UpdateShare

    def of_updates(self, updates: range) -> Generator[MicroBatch]:
        """Prepared ahead by the loader's workers, update by update."""
        places = (
            MicroBatchIndex(update, micro) for update in updates for micro in self.share.micros
        )
        return self._read(places, self.hands)

    def repeated(self, update: int) -> Generator[MicroBatch]:
        """Those of one update once more, without the workers: they are busy with later ones."""
        return self._read(
            [MicroBatchIndex(update, micro) for micro in self.share.micros], _NO_WORKERS
        )

    def _read(
        self, places: Iterable[MicroBatchIndex], hands: LoaderOptions
    ) -> Generator[MicroBatch]:
        with closing(self.feed.micro_batches(places, hands)) as batches:
            for batch in batches:
                yield batch.images, targets_of(batch)

    def sample_ids(self, update: int, micro: int, rows: Sequence[int]) -> list[int]:
        """The samples in these rows of a micro-batch; synthetic ones have no other number."""
        if not isinstance(self.feed, TrainingFeed):
            return list(rows)
        ids: list[int] = self.feed.order.ids(MicroBatchIndex(update, micro))[list(rows)].tolist()
        return ids
