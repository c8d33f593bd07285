"""Transfers of named tensors between processes, in the safetensors format."""

from collections.abc import Callable, Mapping
from functools import partial

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

NamedTensors = dict[str, Tensor]


def send(tensors: Mapping[str, Tensor], group: dist.ProcessGroup, to: int) -> None:
    """Send tensors to one rank of the group, which must call `receive`."""
    for message in _pack(tensors):
        dist.send(message, group=group, group_dst=to)


def receive(group: dist.ProcessGroup, source: int) -> NamedTensors:
    """Receive the tensors that a rank of the group sends."""
    return _receive_tensors(partial(dist.recv, group=group, group_src=source))


def broadcast(tensors: Mapping[str, Tensor] | None, group: dist.ProcessGroup) -> NamedTensors:
    """Broadcast tensors from rank 0 of the group to all; the other ranks pass None."""
    transfer = partial(dist.broadcast, group=group, group_src=0)
    if tensors is None:
        return _receive_tensors(transfer)
    for message in _pack(tensors):
        transfer(message)
    return dict(tensors)


def _pack(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The number of bytes, and the bytes; row-major whatever the strides are."""
    dense = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen = set[int]()
    for name, tensor in dense.items():  # a parameter with two names: safetensors has no aliases
        if tensor.data_ptr() in seen:
            dense[name] = tensor.clone()
        seen.add(tensor.data_ptr())
    data = torch.frombuffer(bytearray(safetensors.torch.save(dense)), dtype=torch.uint8)
    return [torch.tensor([len(data)]), data]


def _receive_tensors(transfer: Callable[[Tensor], object]) -> NamedTensors:
    length = torch.zeros(1, dtype=torch.int64)
    transfer(length)
    data = torch.empty(int(length), dtype=torch.uint8)
    transfer(data)
    return safetensors.torch.load(data.numpy().tobytes())
