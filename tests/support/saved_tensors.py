"""What autograd really saves of a pass: the other side of every planned figure of memory."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.models.layers import LayerPlan, NormSpec
from convoy.parallel.slice import Slice


def saved_bytes(network: Slice, bundle: tuple[Tensor, ...], labels: Tensor) -> int:
    """Bytes of the storages that came in or are saved for backward, the weights' own left out."""
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
    stored = {tensor.untyped_storage().data_ptr(): tensor for tensor in bundle}

    def pack(tensor: Tensor) -> Tensor:
        stored[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        (logits,) = network(*bundle)
        loss = F.cross_entropy(logits, labels)
    assert loss.requires_grad
    storages = [stored[place].untyped_storage() for place in stored.keys() - weights]
    return sum(storage.nbytes() for storage in storages)


def small_change(layers: Iterable[LayerPlan], samples: int) -> int:
    """Bytes that a plan leaves out: statistics of norms, labels, and the sum of their weights."""
    statistics = sum(_statistics(layer, samples) for layer in layers)
    return 4 * statistics + 8 * samples + 4


def _statistics(layer: LayerPlan, samples: int) -> int:
    """Mean and deviation for the backward pass; batch norm also holds the running pair.

    In one pass batch norm remembers them itself. Strided groups have a copy of the scale, in
    another order.
    """
    norm = layer.operation
    if not isinstance(norm, NormSpec):
        return 0
    if norm.kind == "batch":
        return 4 * norm.channels if norm.stable else 0
    return 2 * norm.groups * samples + (norm.channels if norm.interleaved_groups else 0)
