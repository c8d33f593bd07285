"""Replicas that share batch statistics, as threads of one process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

SECONDS = 300  # nothing here may take longer, on a busy machine either
T = TypeVar("T")


class Table:
    """Where the partners of one span lay down their tensors."""

    def __init__(self, span: int) -> None:
        self.parts = [torch.empty(0)] * span
        self.meeting = Barrier(span, timeout=SECONDS)


class ThreadPartner:
    """One of them."""

    def __init__(self, table: Table, place: int) -> None:
        self.table = table
        self.place = place
        self.meetings = 0

    @property
    def size(self) -> int:
        return len(self.table.parts)

    def all_gather(self, tensor: Tensor) -> Tensor:
        self.meetings += 1
        self.table.parts[self.place] = tensor.clone()
        self.table.meeting.wait()
        stacked = torch.stack(self.table.parts)
        self.table.meeting.wait()
        return stacked


def together(span: int, work: Callable[[ThreadPartner], T]) -> list[T]:
    """The same work for every partner at once, and what each gave back."""
    table = Table(span)

    def alongside(place: int) -> T:
        try:
            return work(ThreadPartner(table, place))
        except BaseException:
            table.meeting.abort()
            raise

    with ThreadPoolExecutor(span) as pool:
        return list(pool.map(alongside, range(span)))
