"""Products whose partial sums are rounded on the way: what 16-bit partials do, step by step.

    Σ over 16 input channels → rounded, + Σ over the next 16 → rounded, …

The first sums, of 16 products each, are taken in 32 bits, as the hardware does that has this.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

CHANNELS = 16


class HalfPartials(TorchFunctionMode):
    """Inside, convolutions and linear layers add up channel block by channel block, forward."""

    def __init__(self, rounded: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rounded = rounded

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        if func in (F.conv2d, torch.conv2d):
            assert not kwargs, "layers give a convolution its figures in order"
            return self._conv(*args)
        if func is F.linear:
            return self._linear(*args)
        return func(*args, **(kwargs or {}))

    def _conv(self, given: Tensor, weight: Tensor, bias: Tensor | None, *figures: Any) -> Tensor:
        """Figures: stride, padding, dilation, groups."""

        def product(first: Tensor, second: Tensor) -> Tensor:
            return torch.conv2d(first, second, None, *figures)

        is_whole = len(figures) < 4 or figures[3] == 1  # the channels of a group are few
        made = self._summed(product, given, weight) if is_whole else product(given, weight)
        return self._offset(made, bias, (-1, 1, 1))

    def _linear(self, given: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return self._offset(self._summed(F.linear, given, weight), bias, (-1,))

    def _summed(
        self, product: Callable[[Tensor, Tensor], Tensor], given: Tensor, weight: Tensor
    ) -> Tensor:
        parts = torch.split(given, CHANNELS, 1), torch.split(weight, CHANNELS, 1)
        total: Tensor | None = None
        for channels, weights in zip(*parts, strict=True):
            part = product(channels, weights)
            total = self.rounded(part if total is None else total + part)
        assert total is not None, "there is a channel"
        return total

    def _offset(self, made: Tensor, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
        return made if bias is None else made + bias.view(shape)
