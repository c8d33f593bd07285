"""All parameters of a stage in one flat vector; each parameter is a view of it.

    | conv1.weight · | fc.weight ·· | bn1.weight · | fc.bias ··· |      · padding, always 0
    └──────── weight decay ─────────┘└───── no weight decay ─────┘

Sums, updates and communication then work on a few long vectors instead of hundreds of short ones.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

ALIGNMENT = 16  # elements: 64 bytes of fp32, a cache line and the widest CPU vector


@dataclass(frozen=True)
class FlatRange:
    """Contiguous elements with the same optimizer settings, including padding."""

    elements: range
    decays: bool
    name: str | None = None  # of the parameter, if the range is a single one


class FlatParameters:
    """Moves parameters into a flat vector; they become views of it with unchanged strides.

    Parameters that require no gradient stay where they are.
    """

    def __init__(
        self, weights: Mapping[str, nn.Parameter], no_decay: Collection[str] | None = None
    ) -> None:
        """`no_decay` names parameters without weight decay; by default those of one dimension."""
        self.weights = {name: weight for name, weight in weights.items() if weight.requires_grad}
        self.frozen = {name: weight for name, weight in weights.items() if not weight.requires_grad}
        if no_decay is None:
            no_decay = [name for name, weight in self.weights.items() if weight.dim() <= 1]
        self.numel = 0
        self.decayed_numel = 0  # of the region with weight decay
        self._padded_ranges: dict[
            str, range
        ] = {}  # of each parameter with padding, in memory order
        for name in sorted(self.weights, key=lambda name: name in no_decay):
            start = self.numel
            self.numel += -(-self.weights[name].numel() // ALIGNMENT) * ALIGNMENT
            self._padded_ranges[name] = range(start, self.numel)
            if name not in no_decay:
                self.decayed_numel = self.numel
        self.values = self._move_into_vector()

    @torch.no_grad()
    def _move_into_vector(self) -> Tensor:
        types = {(weight.dtype, weight.device) for weight in self.weights.values()}
        assert len(types) <= 1, f"parameters of one stage differ in dtype or device: {types}"
        dtype, device = next(iter(types), (torch.float32, torch.device("cpu")))
        for weight in self.weights.values():
            dense = torch.empty_like(weight, device="meta")
            assert dense.stride() == weight.stride(), "parameters must be dense and non-overlapping"
        values = torch.zeros(self.numel, dtype=dtype, device=device)
        for weight, view in zip(self.weights.values(), self.views(values), strict=True):
            view.copy_(weight)
            weight.data = view
        return values

    def decay_regions(self) -> list[FlatRange]:
        """The region with weight decay, and the region without."""
        decay_end = self.decayed_numel
        return [FlatRange(range(decay_end), True), FlatRange(range(decay_end, self.numel), False)]

    def parameter_ranges(self) -> list[FlatRange]:
        """One range per parameter, in memory order."""
        return [
            FlatRange(extent, extent.start < self.decayed_numel, name)
            for name, extent in self._padded_ranges.items()
        ]

    def views(self, vector: Tensor) -> list[Tensor]:
        return list(self.named_views(vector).values())

    def named_views(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a vector of this layout in the shapes of the parameters, in their order."""
        return {
            name: vector.as_strided(weight.shape, weight.stride(), self._padded_ranges[name].start)
            for name, weight in self.weights.items()
        }

    def padded_ranges(self) -> dict[str, range]:
        """The elements of each parameter with its padding, in memory order."""
        return dict(self._padded_ranges)

    def parameter_extents(self) -> dict[str, range]:
        """The elements of each parameter, without padding."""
        return {
            name: self._padded_ranges[name][: weight.numel()]
            for name, weight in self.weights.items()
        }

    @torch.no_grad()
    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Copy named tensors into a new vector."""
        vector = torch.zeros_like(self.values)
        for name, view in self.named_views(vector).items():
            view.copy_(tensors[name])
        return vector
