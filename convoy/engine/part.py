"""One process's part in the updates of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from convoy.engine.stopping import REASONS
from convoy.parallel.council import Council, Matter, Single


@dataclass(frozen=True)
class Part:
    """Which micro-batches pass here, and who else there is."""

    micros: Sequence[int]  # those of each update, counted over all replicas
    council: Council
    ends: Sequence[int]  # the rank of each replica's last stage, where results arise
    places: Sequence[str] = ()  # of each rank, for people

    @classmethod
    def whole(cls, micro_batches: int) -> "Part":
        """The part of the only process of a run."""
        return cls(range(micro_batches), Single(), (0,))

    def agreed_reason(self, reason: str | None, update: int) -> str | None:
        """Why all of us stop, if anybody wants to: a signal may reach one process alone."""
        own = 0 if reason is None else REASONS.index(reason) + 1
        highest = max(self.council.meet(Matter.STOP, update, own))
        return REASONS[highest - 1] if highest else None

    def rows_of_all(self, rows: Tensor, micro_batches: int, update: int) -> Tensor:
        """Rows of our micro-batches, of one or more updates → those of all replicas, in order."""
        everybody = self.council.gather(Matter.REPORT, update, rows)
        shape = (-1, micro_batches, rows.shape[1])  # (updates, micro-batches of one replica, …)
        by_replica = [everybody[rank].view(shape) for rank in self.ends]
        return torch.cat(by_replica, dim=1).flatten(0, 1)
