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

BATCHES = 4242  # torch's count beside each batch norm


def tensors(keys: Keys, seed: int = 0) -> dict[str, Tensor]:
    """Numbers for every key; counts are counts."""
    chance = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(shape, generator=chance) if shape else torch.tensor(BATCHES)
        for name, shape in keys.items()
    }


def parameters(keys: Mapping[str, tuple[int, ...]]) -> int:
    """Of the weights alone: statistics and counts are no parameters."""
    shapes = [shape for name, shape in keys.items() if name.endswith((".weight", ".bias"))]
    return sum(torch.Size(shape).numel() for shape in shapes)


@cache
def target_for(model: str, **values: Any) -> TargetNetwork:
    """What one of our networks expects, 1000 classes unless told otherwise."""
    config = build_config({"model": model, "data": "generated", **values})
    return target_network(plan_network(config), config)
