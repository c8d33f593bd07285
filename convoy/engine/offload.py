"""Tensors outside the device between uses: optimizer state, gradient sums and activations.

On a CPU they are in files that are mapped into memory, on an accelerator in the memory of the host.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from convoy.optim.optimizer import MmapStorage, PinnedHostStorage, StateStorage

_MIN_ELEMENTS = 1 << 12  # smaller activations stay where they are


def host_storage(device: torch.device) -> StateStorage:
    """Memory outside the device: files mapped into memory for a CPU, the host otherwise."""
    return MmapStorage(Path(gettempdir())) if device.type == "cpu" else PinnedHostStorage()


def accumulator_storage(offloaded: bool) -> StateStorage | None:
    """Where the sums of gradients are between micro-batches; None: on the device."""
    if not offloaded:
        return None
    return MmapStorage(Path(gettempdir())) if not torch.cuda.is_available() else PinnedHostStorage()


class OffloadedState:
    """Keeps the state of a torch optimizer outside the device between updates."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._storages: dict[str, StateStorage] = {}
        self._stored: dict[tuple[nn.Parameter, str], Tensor] = {}

    def fetch(self) -> None:
        """Move the state to the devices of the parameters; on a CPU the files stay mapped."""
        for parameter, name, tensor in self._tensors():
            if tensor.device != parameter.device:
                self.optimizer.state[parameter][name] = tensor.to(parameter.device)

    def evict(self) -> None:
        """Move the state out of the memory of the device."""
        for parameter, name, tensor in self._tensors():
            stored = self._stored.get((parameter, name))
            if stored is None:
                storage = self._storage(parameter.device)
                stored = storage.zeros(tensor.numel(), tensor).view(tensor.shape)
                self._stored[parameter, name] = stored
            if stored.data_ptr() != tensor.data_ptr():
                stored.copy_(tensor)
                self.optimizer.state[parameter][name] = stored
        for storage in self._storages.values():
            storage.evict()

    def _storage(self, device: torch.device) -> StateStorage:
        return self._storages.setdefault(device.type, host_storage(device))

    def _tensors(self) -> list[tuple[nn.Parameter, str, Tensor]]:
        """The state with as many elements as its parameter; counters stay where they are."""
        return [
            (parameter, name, value)
            for parameter, state in self.optimizer.state.items()
            if isinstance(parameter, nn.Parameter)
            for name, value in state.items()
            if isinstance(value, Tensor) and value.numel() == parameter.numel() > 1
        ]


class _OffloadedActivation:
    """An activation outside the device; autograd drops it when it is no longer needed."""

    def __init__(self, tensor: Tensor, stored: Tensor, free: list[Tensor]) -> None:
        stored.view(tensor.shape).copy_(tensor)
        self._shape, self._strides, self._device = tensor.shape, tensor.stride(), tensor.device
        self._stored = stored
        self._free = free  # where the memory can be used again

    def __del__(self) -> None:
        self._free.append(self._stored)

    def load(self) -> Tensor:
        tensor = torch.empty_strided(
            self._shape, self._strides, dtype=self._stored.dtype, device=self._device
        )
        return tensor.copy_(self._stored.view(self._shape))


class ActivationOffload:
    """Moves the activations that autograd saves out of the device until the backward pass."""

    def __init__(self) -> None:
        self._storages: dict[torch.device, StateStorage] = {}
        self._free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}
        self.offloaded_bytes = 0  # since the start

    @contextmanager
    def active(self) -> Iterator[None]:
        """Offload what autograd saves in this context."""
        with saved_tensors_hooks(self._pack, _unpack):
            yield
        for storage in self._storages.values():
            storage.evict()

    def _pack(self, tensor: Tensor) -> Tensor | _OffloadedActivation:
        is_weight = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if is_weight or tensor.numel() < _MIN_ELEMENTS or 0 in tensor.stride():
            return tensor
        self.offloaded_bytes += tensor.nbytes
        free = self._free.setdefault((tensor.numel(), tensor.dtype, tensor.device), [])
        stored = free.pop() if free else self._allocate(tensor)
        return _OffloadedActivation(tensor.detach(), stored, free)

    def _allocate(self, tensor: Tensor) -> Tensor:
        storage = self._storages.setdefault(tensor.device, host_storage(tensor.device))
        return storage.zeros(tensor.numel(), tensor.detach())


def _unpack(saved: Tensor | _OffloadedActivation) -> Tensor:
    return saved.load() if isinstance(saved, _OffloadedActivation) else saved
