"""The live network of a plan: its layers, its weights by name, its waiting statistics."""

from dataclasses import dataclass

import torch
from torch import Tensor

from convoy.models.build import build_layers
from convoy.models.layers import BatchNorm
from convoy.parallel.slice import Slice
from convoy.plan.network import NetworkPlan


@dataclass(frozen=True)
class Network:
    """All layers as one slice, and those of them that gather statistics."""

    slice: Slice
    norms: list[BatchNorm]

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over weights and running statistics by name."""
        for name, tensor in self.slice.named_tensors().items():
            tensor.copy_(tensors[name])


def build_network(plan: NetworkPlan, seed: int, device: torch.device) -> Network:
    """A fresh network on the device. Pixels lie together (channels_last): 1.17 × on a CPU."""
    built = build_layers(plan.layers, seed)
    network = Slice(plan.layers, built)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # a stub
    return Network(network, [one for one in network.modules() if isinstance(one, BatchNorm)])
