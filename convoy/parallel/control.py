"""The control group: what all processes of a run decide together, and how a stray one is noticed.

Every collective has a number, a sync point and an update. A process that comes with another entry
than the rest would later wait for messages that nobody sends, so it is named at once.
"""

from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from convoy.errors import HangError

_ENTRY = 3 + 8  # numbers of every message of a meeting: who strays must be understood, too
_PATIENCE = timedelta(days=30)  # of those who wait while the first process works alone


class SyncPoint(IntEnum):
    """What a collective is about."""

    BEGIN = 0
    STOP = 1
    REPORT = 2
    MEASURE = 3
    SAVE = 4
    CLOSE = 5
    VERDICT = 6


class ControlGroup:
    """What the loop knows of all other processes; here there are none."""

    is_first = True  # this process writes and prints; there is one that does

    def all_gather(self, point: SyncPoint, update: int, note: int = 0) -> list[int]:
        """Everybody's note, in the order of the ranks."""
        return [one for (one,) in self.all_gather_many(point, update, [note])]

    def all_gather_many(
        self, point: SyncPoint, update: int, notes: Sequence[int]
    ) -> list[list[int]]:
        """Everybody's notes, as many as ours, in the order of the ranks."""
        del point, update
        return [[*notes]]

    def gather(self, point: SyncPoint, update: int, part: Tensor) -> list[Tensor]:
        """Everybody's tensor of this shape, in the order of the ranks."""
        del point, update
        return [part]

    def broadcast(self, word: bytes) -> bytes:
        """What the first process says; the others' word is not asked."""
        return word

    def wait_for_first(self) -> None:
        """Until the first process comes here too, which may work alone for hours."""


class DistributedControlGroup(ControlGroup):
    """All ranks of a process group. Its tensors live on the CPU."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.is_first = group.rank() == 0
        self.meetings = 0

    def all_gather_many(
        self, point: SyncPoint, update: int, notes: Sequence[int]
    ) -> list[list[int]]:
        """One message. A process that came to another sync point may have brought fewer notes."""
        entry = torch.zeros(_ENTRY, dtype=torch.int64)
        entry[: 3 + len(notes)] = torch.tensor([self.meetings, point, update, *notes])
        self.meetings += 1
        entries = [one.tolist() for one in self._everybody(entry)]
        _refuse_strays(entries)
        return [one[3 : 3 + len(notes)] for one in entries]

    def gather(self, point: SyncPoint, update: int, part: Tensor) -> list[Tensor]:
        self.all_gather(point, update)
        return self._everybody(part)

    def broadcast(self, word: bytes) -> bytes:
        length = torch.tensor([len(word)])
        dist.broadcast(length, group=self.group, group_src=0)
        said = bytearray(word if self.is_first else int(length))
        if said:
            buffer = torch.frombuffer(said, dtype=torch.uint8)
            dist.broadcast(buffer, group=self.group, group_src=0)
        return bytes(said)

    def wait_for_first(self) -> None:
        """Its end would be heard at once, so that nobody waits for one that is gone."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = _PATIENCE
        self.group.broadcast([torch.zeros(1)], options).wait()

    def _everybody(self, part: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(part) for _ in range(self.group.size())]
        if part.numel():
            dist.all_gather(parts, part, group=self.group)
        return parts


def _refuse_strays(entries: list[list[int]]) -> None:
    """Two entries that differ are told side by side; which of them is wrong, nobody knows."""
    first = entries[0]
    for rank, other in enumerate(entries):
        if other[:3] != first[:3]:
            raise HangError(
                f"the processes no longer do the same: rank 0 came to {_told(first)}, rank {rank} "
                f"to {_told(other)}; they would have waited for each other forever; go on from "
                "the last checkpoint with `convoy resume`"
            )


def _told(entry: list[int]) -> str:
    number, point, update, *_ = entry
    return f"meeting {number} ({SyncPoint(point).name.lower()} after update {update})"
