"""The control group: decisions that all processes of a run make together.

Every collective carries a sequence number, a sync point and an update. A process that arrives with
a different entry would later wait for messages that are never sent, so it is reported immediately.
"""

from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from convoy.errors import HangError

_ENTRY_SIZE = 3 + 8  # fixed, so that the entry of a process that is out of sync can be read too
_FIRST_RANK_TIMEOUT = timedelta(days=30)  # for ranks that wait while only rank 0 works


class SyncPoint(IntEnum):
    """The purpose of a collective."""

    START = 0
    STOP = 1
    METRICS = 2
    VALIDATE = 3
    SAVE = 4
    CLOSE = 5
    STEP_DECISION = 6


class ControlGroup:
    """The processes of a run as the training loop sees them; this class is a single process."""

    is_rank_zero = True  # exactly one process writes and prints

    def all_gather(self, point: SyncPoint, update: int, value: int = 0) -> list[int]:
        """Gather one value from every rank, in rank order."""
        return [row[0] for row in self.all_gather_values(point, update, [value])]

    def all_gather_values(
        self, point: SyncPoint, update: int, values: Sequence[int]
    ) -> list[list[int]]:
        """Gather the same number of values from every rank, in rank order."""
        del point, update
        return [[*values]]

    def all_gather_tensor(self, point: SyncPoint, update: int, tensor: Tensor) -> list[Tensor]:
        """Gather a tensor of the same shape from every rank, in rank order."""
        del point, update
        return [tensor]

    def broadcast(self, data: bytes) -> bytes:
        """Return the data of rank 0; the data of other ranks is ignored."""
        return data

    def wait_for_rank_zero(self) -> None:
        """Block until rank 0 arrives, which may take hours."""


class DistributedControlGroup(ControlGroup):
    """All ranks of a process group. Its tensors live on the CPU."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.is_rank_zero = group.rank() == 0
        self.sequence_number = 0

    def all_gather_values(
        self, point: SyncPoint, update: int, values: Sequence[int]
    ) -> list[list[int]]:
        """Send one message. A process at a different sync point may send fewer values."""
        entry = torch.zeros(_ENTRY_SIZE, dtype=torch.int64)
        entry[: 3 + len(values)] = torch.tensor([self.sequence_number, point, update, *values])
        self.sequence_number += 1
        entries = [gathered.tolist() for gathered in self._all_gather(entry)]
        _check_in_sync(entries)
        return [row[3 : 3 + len(values)] for row in entries]

    def all_gather_tensor(self, point: SyncPoint, update: int, tensor: Tensor) -> list[Tensor]:
        self.all_gather(point, update)
        return self._all_gather(tensor)

    def broadcast(self, data: bytes) -> bytes:
        length = torch.tensor([len(data)])
        dist.broadcast(length, group=self.group, group_src=0)
        received = bytearray(data if self.is_rank_zero else int(length))
        if received:
            buffer = torch.frombuffer(received, dtype=torch.uint8)
            dist.broadcast(buffer, group=self.group, group_src=0)
        return bytes(received)

    def wait_for_rank_zero(self) -> None:
        """If rank 0 dies, its connection closes and the broadcast fails immediately."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = _FIRST_RANK_TIMEOUT
        self.group.broadcast([torch.zeros(1)], options).wait()

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.group.size())]
        if tensor.numel():
            dist.all_gather(gathered, tensor, group=self.group)
        return gathered


def _check_in_sync(entries: list[list[int]]) -> None:
    """Report two entries that differ side by side: which of them is wrong is unknown."""
    first = entries[0]
    for rank, entry in enumerate(entries):
        if entry[:3] != first[:3]:
            raise HangError(
                f"the processes are out of sync: rank 0 is at {_describe_entry(first)}, "
                f"rank {rank} at {_describe_entry(entry)}; they would wait for each other "
                "forever; continue from the last checkpoint with `convoy resume`"
            )


def _describe_entry(entry: list[int]) -> str:
    number, point, update, *_ = entry
    name = SyncPoint(point).name.lower().replace("_", " ")
    return f"sync point {number} ({name} after update {update})"
