"""Transfers of named tensors between processes: a JSON description, then the bytes."""

import json
import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

NamedTensors = dict[str, Tensor]

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64)
}


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
    """Length of the description, description, bytes; row-major whatever the strides are."""
    flat = [tensor.detach().cpu().reshape(-1).view(torch.uint8) for tensor in tensors.values()]
    description = [
        [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        for name, tensor in tensors.items()
    ]
    text = torch.frombuffer(bytearray(json.dumps(description).encode()), dtype=torch.uint8)
    return [torch.tensor([len(text)]), text, torch.cat([*flat, torch.zeros(1, dtype=torch.uint8)])]


def _receive_tensors(transfer: Callable[[Tensor], object]) -> NamedTensors:
    length = torch.zeros(1, dtype=torch.int64)
    transfer(length)
    text = torch.empty(int(length), dtype=torch.uint8)
    transfer(text)
    description = json.loads(text.numpy().tobytes())
    sizes = [math.prod(shape) * _DTYPES[dtype].itemsize for _, dtype, shape in description]
    body = torch.empty(sum(sizes) + 1, dtype=torch.uint8)
    transfer(body)
    parts = body[:-1].split(sizes)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return {
        name: part.clone().view(_DTYPES[dtype]).reshape(shape)
        for (name, dtype, shape), part in zip(description, parts, strict=True)
    }
