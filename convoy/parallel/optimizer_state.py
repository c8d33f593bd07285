"""Optimizer state away from the device and over replicas: kept elsewhere, made whole for a save."""

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

import torch
from torch import Tensor

from convoy.errors import StorageError
from convoy.numerics.flat import ALIGNMENT
from convoy.parallel.replicas import Replicas
from convoy.parallel.sharding import Shards

_LONG = 1 << 40  # elements


class MappedFile:
    """State in a file that is mapped into memory and dropped from it between updates.

    The file has no name, so it is gone with the process, however that ends. Its pages stay in the
    system's cache while there is room; the system writes them out when there is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._maps: list[mmap.mmap] = []

    def vector(self, elements: int, like: Tensor) -> Tensor:
        """Zeros in a file of their own."""
        size = elements * like.element_size()
        if not size:
            return torch.zeros(0, dtype=like.dtype)
        mapped = self._map(size)
        self._maps.append(mapped)
        return torch.frombuffer(mapped, dtype=like.dtype)

    def _map(self, size: int) -> mmap.mmap:
        """Room is reserved now: a full disk must be an error here, not a crash in an update."""
        try:
            with TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                return mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise StorageError(
                f"{self.folder} cannot take {size:,} bytes of optimizer state: {error.strerror}; "
                "make room there or leave --offload-optimizer out"
            ) from None

    def rest(self) -> None:
        """Give the memory back; what was written stays in the file."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)


class HostMemory:
    """State in the host's memory while the weights are on an accelerator.

    The optimizer copies it block by block. With CUDA the memory is pinned, so that the device reads
    it without help; that branch has not run yet, for want of such a device.
    """

    def vector(self, elements: int, like: Tensor) -> Tensor:
        pinned = torch.cuda.is_available()
        return torch.zeros(elements, dtype=like.dtype, device="cpu", pin_memory=pinned)

    def rest(self) -> None:
        """It never left."""


def home_for(device: torch.device, offloaded: bool, folder: Path) -> MappedFile | HostMemory | None:
    """Where state lives between updates; None is with the weights, as every optimizer has it."""
    if not offloaded:
        return None
    return MappedFile(folder) if device.type == "cpu" else HostMemory()


def gatherer(replicas: Replicas, elements: int) -> Callable[[Tensor], Tensor]:
    """What makes a whole vector of every replica's owned range. All replicas must call it."""

    def gather(part: Tensor) -> Tensor:
        if not _is_divided(replicas):
            return part
        owned = replicas.owned(elements)
        whole = torch.zeros(elements, dtype=part.dtype, device=part.device)
        whole[owned.start : owned.stop] = part
        replicas.share(whole)
        return whole

    return gather


def row_gatherer(replicas: Replicas, shards: Shards) -> Callable[[Tensor], Tensor]:
    """What makes of every owner's rows, one for each 16 elements, those of the whole vector."""

    def gather(rows: Tensor) -> Tensor:
        if not _is_divided(replicas):
            return rows
        padded = rows.new_zeros(shards.size // ALIGNMENT, *rows.shape[1:])
        padded[: len(rows)] = rows
        return replicas.gather_statistics(padded)[: shards.elements // ALIGNMENT]

    return gather


def _is_divided(replicas: Replicas) -> bool:
    """Asked of a vector that is long enough for all: of a short one the first may own everything,
    and must still speak to those who own nothing."""
    return len(replicas.owned(_LONG)) < _LONG
