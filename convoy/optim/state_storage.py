"""Where optimizer state is between updates: on the device, in host memory, or in a mapped file."""

import mmap
import os
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

import torch
from torch import Tensor

from convoy.errors import StorageError


class StateStorage(Protocol):
    """Allocates vectors, and may free their memory while nothing works with them."""

    def vector(self, elements: int, like: Tensor) -> Tensor:
        """Zeros with the dtype of `like`."""

    def evict(self) -> None:
        """The update is done; the vectors are not needed until the next one."""


class OnDevice:
    """State stays where the weights are."""

    def vector(self, elements: int, like: Tensor) -> Tensor:
        return torch.zeros(elements, dtype=like.dtype, device=like.device)

    def evict(self) -> None:
        """Nothing to free."""


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
        """Reserves the space: a full disk must be an error here, not a crash in an update."""
        try:
            with TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                return mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise StorageError(
                f"{self.folder} cannot take {size:,} bytes of optimizer state: {error.strerror}; "
                "make room there or leave --offload-optimizer out"
            ) from None

    def evict(self) -> None:
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

    def evict(self) -> None:
        """It is not on the device."""


def storage_for(device: torch.device, offloaded: bool, folder: Path) -> StateStorage:
    """State stays with the weights unless `--offload-optimizer` says otherwise."""
    if not offloaded:
        return OnDevice()
    return MappedFile(folder) if device.type == "cpu" else HostMemory()
