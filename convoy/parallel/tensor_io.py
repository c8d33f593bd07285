"""Named tensors from process to process: a line of JSON that describes them, then their bytes."""

import json
import math
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

Cargo = dict[str, Tensor]
_Get = Callable[[Tensor], None]

_TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64)
}


def send(cargo: Mapping[str, Tensor], group: dist.ProcessGroup, to: int) -> None:
    """To one member of the group, which must `receive`."""
    for part in _packed(cargo):
        dist.send(part, group=group, group_dst=to)


def receive(group: dist.ProcessGroup, source: int) -> Cargo:
    """What a member of the group sends us."""

    def get(part: Tensor) -> None:
        dist.recv(part, group=group, group_src=source)

    return _received(get)


def spread(cargo: Mapping[str, Tensor] | None, group: dist.ProcessGroup) -> Cargo:
    """From the first member to all; the others have none to give."""

    def get(part: Tensor) -> None:
        dist.broadcast(part, group=group, group_src=0)

    if cargo is None:
        return _received(get)
    for part in _packed(cargo):
        dist.broadcast(part, group=group, group_src=0)
    return dict(cargo)


def _packed(cargo: Mapping[str, Tensor]) -> list[Tensor]:
    """Length of the description, description, bytes; in row order whatever the strides."""
    flat = [one.detach().cpu().reshape(-1).view(torch.uint8) for one in cargo.values()]
    described = [
        [name, str(one.dtype).removeprefix("torch."), list(one.shape)]
        for name, one in cargo.items()
    ]
    text = torch.frombuffer(bytearray(json.dumps(described).encode()), dtype=torch.uint8)
    return [torch.tensor([len(text)]), text, torch.cat([*flat, torch.zeros(1, dtype=torch.uint8)])]


def _received(get: _Get) -> Cargo:
    length = torch.zeros(1, dtype=torch.int64)
    get(length)
    text = torch.empty(int(length), dtype=torch.uint8)
    get(text)
    described = json.loads(text.numpy().tobytes())
    sizes = [_bytes(dtype, shape) for _, dtype, shape in described]
    body = torch.empty(sum(sizes) + 1, dtype=torch.uint8)
    get(body)
    parts = body[:-1].split(sizes)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return {
        name: part.clone().view(_TYPES[dtype]).reshape(shape)
        for (name, dtype, shape), part in zip(described, parts, strict=True)
    }


def _bytes(dtype: str, shape: list[int]) -> int:
    return math.prod(shape) * _TYPES[dtype].itemsize
