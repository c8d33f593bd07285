"""The memory that autograd saves in a forward pass, to compare with the plan."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.models.layers import LayerPlan, NormSpec
from convoy.parallel.slice import Slice


def saved_bytes(network: Slice, bundle: tuple[Tensor, ...], labels: Tensor) -> int:
    """Bytes of the inputs and of the tensors saved for backward, without the weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
    stored = {tensor.untyped_storage().data_ptr(): tensor for tensor in bundle}

    def pack(tensor: Tensor) -> Tensor:
        stored[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        (logits,) = network(*bundle)
        loss = F.cross_entropy(logits, labels)
    assert loss.requires_grad
    storages = [stored[address].untyped_storage() for address in stored.keys() - weights]
    return sum(storage.nbytes() for storage in storages)


def unplanned_bytes(layers: Iterable[LayerPlan], samples: int) -> int:
    """Bytes that a plan excludes: statistics of norms, labels, and the total label weight."""
    statistics = sum(_statistics(layer, samples) for layer in layers)
    return 4 * statistics + 8 * samples + 4


def _statistics(layer: LayerPlan, samples: int) -> int:
    """Mean and deviation for the backward pass; batch norm also has the running statistics.

    Single-pass batch norm does not save them with autograd. Strided groups have a reordered copy
    of the scale.
    """
    norm = layer.operation
    if not isinstance(norm, NormSpec):
        return 0
    if norm.kind == "batch":
        return 4 * norm.channels if norm.stable else 0
    return 2 * norm.groups * samples + (norm.channels if norm.interleaved_groups else 0)
