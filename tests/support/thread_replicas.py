"""Replicas with synced batch norm, as threads of one process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

SECONDS = 300  # timeout, long enough for a busy machine
T = TypeVar("T")


class SharedTensors:
    """The tensors of all partners of one span."""

    def __init__(self, span: int) -> None:
        self.tensors = [torch.empty(0)] * span
        self.barrier = Barrier(span, timeout=SECONDS)


class ThreadPartner:
    """A replica of a span; counts its all-gathers."""

    def __init__(self, shared: SharedTensors, index: int) -> None:
        self.shared = shared
        self.index = index
        self.num_gathers = 0

    @property
    def size(self) -> int:
        return len(self.shared.tensors)

    def all_gather(self, tensor: Tensor) -> Tensor:
        self.num_gathers += 1
        self.shared.tensors[self.index] = tensor.clone()
        self.shared.barrier.wait()
        stacked = torch.stack(self.shared.tensors)
        self.shared.barrier.wait()
        return stacked


def run_in_threads(span: int, work: Callable[[ThreadPartner], T]) -> list[T]:
    """Call a function for every partner in parallel and return all results."""
    shared = SharedTensors(span)

    def run(index: int) -> T:
        try:
            return work(ThreadPartner(shared, index))
        except BaseException:
            shared.barrier.abort()
            raise

    with ThreadPoolExecutor(span) as pool:
        return list(pool.map(run, range(span)))
