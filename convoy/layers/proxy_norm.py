"""Activations made standard by proxy: as if a normal distribution went through them.

Mean and deviation are those of the activation at 200 quantiles of a normal distribution with a
learned mean and deviation. They depend on weights alone, so samples stay independent.
"""

from collections.abc import Callable
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from convoy.layers.modules import conv, mean_pixel
from convoy.models import operations as plan

QUANTILES = 200
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"swish": F.silu, "relu": F.relu}


class ProxyActivation(nn.Module):
    """(act(γ·x + β) − μ) ÷ σ, with μ and σ those of act(γ·z + β), z = (1 + γ′)·quantile + β′."""

    quantiles: Tensor

    def __init__(self, spec: plan.ProxyActivationSpec) -> None:
        super().__init__()
        self.function = FUNCTIONS[spec.kind]
        self.eps = spec.eps
        self.scaled = spec.scaled
        self.recompute = spec.recompute
        self.weight = nn.Parameter(torch.ones(spec.channels))
        self.bias = nn.Parameter(torch.zeros(spec.channels))
        self.proxy = nn.Parameter(torch.zeros(2, spec.channels))  # γ′, β′: these two decay
        normal = NormalDist()
        points = [normal.inv_cdf((index + 0.5) / QUANTILES) for index in range(QUANTILES)]
        self.register_buffer("quantiles", torch.tensor(points), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return _maybe_again(self._standard, inputs, self.recompute and self.training)

    def _standard(self, inputs: Tensor) -> Tensor:
        mean, scale = self.moments()
        outputs = self.centered(inputs, mean)
        return outputs * scale.view(-1, 1, 1) if self.scaled else outputs

    def centered(self, inputs: Tensor, mean: Tensor) -> Tensor:
        """The activation without its proxy mean."""
        return self._activated(inputs, (-1, 1, 1)) - mean.view(-1, 1, 1)

    def moments(self) -> tuple[Tensor, Tensor]:
        """The mean of each channel's proxy, and one over its deviation."""
        spread, shift = self.proxy.unsqueeze(-1)
        outputs = self._activated((1 + spread) * self.quantiles + shift, (-1, 1))
        variance, mean = torch.var_mean(outputs, 1, correction=0)
        return mean, torch.rsqrt(variance + self.eps)

    def _activated(self, inputs: Tensor, shape: tuple[int, ...]) -> Tensor:
        return self.function(self.weight.view(shape) * inputs + self.bias.view(shape))


class ProxySqueezeExcite(nn.Module):
    """The activation before a gate: the gate sees it centered, and its scale comes last."""

    def __init__(self, spec: plan.ProxySqueezeExciteSpec) -> None:
        super().__init__()
        self.act = ProxyActivation(spec.proxy)
        self.conv_reduce = conv(spec.reduce)
        self.conv_expand = conv(spec.expand)
        self.recompute = spec.proxy.recompute

    def forward(self, inputs: Tensor) -> Tensor:
        return _maybe_again(self._gated, inputs, self.recompute and self.training)

    def _gated(self, inputs: Tensor) -> Tensor:
        mean, scale = self.act.moments()
        centered = self.act.centered(inputs, mean)
        inner = self.act.function(self.conv_reduce(mean_pixel(centered, self.training)))
        gate = torch.sigmoid(self.conv_expand(inner))
        return centered * (gate * scale.view(-1, 1, 1))


def _maybe_again(make: Callable[[Tensor], Tensor], inputs: Tensor, again: bool) -> Tensor:
    """Nothing in here draws by chance, so torch's generators need not be put back."""
    if not (again and torch.is_grad_enabled()):
        return make(inputs)
    outputs: Tensor = checkpoint(make, inputs, use_reentrant=False, preserve_rng_state=False)
    return outputs
