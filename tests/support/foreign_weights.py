"""Random weights in the layouts of other libraries, and the target networks."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from convoy.config.schema import build_config
from convoy.models.network import plan_network
from convoy.run.import_export import target_network
from convoy.weights.name_mapping import TargetNetwork
from support.published_keys import Keys

BATCHES = 4242  # num_batches_tracked of each batch norm


def tensors(keys: Keys, seed: int = 0) -> dict[str, Tensor]:
    """A random tensor for every key, and integer counts."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(shape, generator=rng) if shape else torch.tensor(BATCHES)
        for name, shape in keys.items()
    }


def parameters(keys: Mapping[str, tuple[int, ...]]) -> int:
    """The number of parameters, without statistics and counts."""
    shapes = [shape for name, shape in keys.items() if name.endswith((".weight", ".bias"))]
    return sum(torch.Size(shape).numel() for shape in shapes)


@cache
def target_for(model: str, **values: Any) -> TargetNetwork:
    """The tensors that a model of convoy expects, by default for 1000 classes."""
    config = build_config({"model": model, "data": "generated", **values})
    return target_network(plan_network(config), config)
