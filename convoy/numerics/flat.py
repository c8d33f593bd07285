"""All weights of a stage in one vector, each weight a view into it.

    | conv1.weight · | fc.weight ·· | bn1.weight · | fc.bias ··· |      · padding, always 0
    └──────── these decay ──────────┘└────── these do not ───────┘

Sums, updates and messages then work on a few long vectors instead of hundreds of short ones.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

ALIGNMENT = 16  # elements: 64 bytes in 32 bits, a cache line and the widest vector of a CPU


@dataclass(frozen=True)
class _Part:
    """Where one weight lies."""

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    def view(self, vector: Tensor) -> Tensor:
        return vector.as_strided(self.shape, self.stride, self.offset)


@dataclass(frozen=True)
class Stretch:
    """Elements in a row that are treated alike, with the padding behind them."""

    elements: range
    decays: bool
    name: str | None = None  # of the weight, if it is one alone


class FlatWeights:
    """Takes the weights over: from now on they are views, with the strides they had.

    Those that have no gradient stay where they are.
    """

    def __init__(
        self, weights: Mapping[str, nn.Parameter], spared: Collection[str] | None = None
    ) -> None:
        """`spared` are the names of weights that do not decay; None: those of one dimension."""
        self.weights = {name: one for name, one in weights.items() if one.requires_grad}
        self.frozen = {name: one for name, one in weights.items() if not one.requires_grad}
        if spared is None:
            spared = [name for name, weight in self.weights.items() if weight.dim() <= 1]
        decaying = [name for name in self.weights if name not in spared]
        others = [name for name in self.weights if name in spared]
        offsets: dict[str, int] = {}
        self.elements = self._place(decaying, offsets, 0)
        self.decaying = self.elements  # elements of the region that decays
        self.elements = self._place(others, offsets, self.elements)
        self._parts = {
            name: _Part(weight.shape, weight.stride(), offsets[name])
            for name, weight in self.weights.items()
        }
        self.values = self._take_over()

    def _place(self, names: list[str], offsets: dict[str, int], end: int) -> int:
        for name in names:
            offsets[name] = end
            end += -(-self.weights[name].numel() // ALIGNMENT) * ALIGNMENT
        return end

    @torch.no_grad()
    def _take_over(self) -> Tensor:
        kinds = {(weight.dtype, weight.device) for weight in self.weights.values()}
        assert len(kinds) <= 1, f"weights of one stage are of one kind, not {kinds}"
        dtype, device = next(iter(kinds), (torch.float32, torch.device("cpu")))
        dense = all(_is_dense(weight) for weight in self.weights.values())
        assert dense, "a weight with gaps or overlaps cannot keep its strides"
        values = torch.zeros(self.elements, dtype=dtype, device=device)
        for weight, view in zip(self.weights.values(), self.views(values), strict=True):
            view.copy_(weight)
            weight.data = view
        return values

    def regions(self) -> list[Stretch]:
        """All that decays, and all that does not."""
        border = self.decaying
        return [Stretch(range(border), True), Stretch(range(border, self.elements), False)]

    def stretches(self) -> list[Stretch]:
        """One for each weight, in the order in which they lie."""
        lying = sorted(self._parts, key=lambda name: self._parts[name].offset)
        starts = [self._parts[name].offset for name in lying]
        extents = map(range, starts, [*starts[1:], self.elements])
        return [
            Stretch(extent, extent.start < self.decaying, name)
            for name, extent in zip(lying, extents, strict=True)
        ]

    def views(self, vector: Tensor) -> list[Tensor]:
        """A vector of this layout as tensors in the shapes of the weights, in their order."""
        return [part.view(vector) for part in self._parts.values()]

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The same by name."""
        return {name: part.view(vector) for name, part in self._parts.items()}

    def extents(self) -> dict[str, range]:
        """Where each weight lies."""
        sizes = {name: weight.numel() for name, weight in self.weights.items()}
        starts = {name: part.offset for name, part in self._parts.items()}
        return {name: range(at, at + sizes[name]) for name, at in starts.items()}

    @torch.no_grad()
    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The other way: a new vector out of tensors by name."""
        vector = torch.zeros_like(self.values)
        for name, view in self.named(vector).items():
            view.copy_(tensors[name])
        return vector


def _is_dense(weight: Tensor) -> bool:
    spans = zip(weight.shape, weight.stride(), strict=True)
    return sum((size - 1) * stride for size, stride in spans) + 1 == weight.numel()
