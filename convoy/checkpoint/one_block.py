"""Room for a copy of contents in one block of memory, which goes back to the system as a whole.

Hundreds of small blocks would not: a process that trains keeps what it frees in small pieces, for
its next micro-batch (`launch/memory.py`). A block above that size is the system's again at once.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from convoy.checkpoint.contents import Contents, Tensors

_ALIGNMENT = 64  # bytes: a cache line, and more than any type of a tensor needs


def room_for(contents: Contents) -> Contents:
    """Tensors of the same names, shapes and types, whatever they hold; for `Contents.copy`."""
    parts = (contents.model, contents.optimizer, contents.averages)
    size = sum(_place(one) for part in parts for one in part.values())
    model, optimizer, averages = _places(torch.empty(size, dtype=torch.uint8), parts)
    return Contents(model, optimizer, averages)


def _places(block: Tensor, parts: Iterable[Tensors]) -> list[Tensors]:
    made: list[Tensors] = []
    end = 0
    for part in parts:
        made.append({})
        for name, tensor in part.items():
            place = block[end : end + tensor.nbytes]
            made[-1][name] = place.view(tensor.dtype).view(tensor.shape)
            end += _place(tensor)
    return made


def _place(tensor: Tensor) -> int:
    """Bytes from the start of this tensor to that of the next."""
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
