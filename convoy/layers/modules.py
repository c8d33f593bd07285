"""Layers that torch does not provide in the form needed here, and activations by name."""

from collections.abc import Callable
from functools import partial
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from convoy.models import layers as operations
from convoy.models.layers import ConvSpec


def sequential_layers(sequential: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """The layers of a sequential module by name; one that appears twice is listed twice.

    `named_children` would leave out the second use of a shared activation.
    """
    modules = sequential.named_modules(remove_duplicate=False)
    return [(name, module) for name, module in modules if name and "." not in name]


def build_conv(spec: ConvSpec) -> nn.Conv2d:
    """A convolution whose output size is the input size divided by the stride, rounded up."""
    args = (spec.inputs, spec.outputs, spec.kernel, spec.stride)
    if spec.padding == "same" and spec.stride > 1 and spec.kernel > 1:
        return SameConv(*args, groups=spec.groups, bias=spec.bias)
    padding = spec.kernel // 2
    return nn.Conv2d(*args, padding, groups=spec.groups, bias=spec.bias)


class SameConv(nn.Conv2d):
    """Convolution with TensorFlow's `same` padding: an odd pixel goes to the bottom right."""

    def forward(self, inputs: Tensor) -> Tensor:
        padded = F.pad(inputs, same_padding(inputs, self.kernel_size[0], self.stride[0]))
        return super().forward(padded)


def build_max_pool(padding: str) -> nn.Module:
    """Max pooling with 3 × 3 windows and stride 2."""
    if padding == "same":
        return SameMaxPool()
    return nn.MaxPool2d(3, stride=2, padding=1 if padding == "symmetric" else 0)


class SameMaxPool(nn.Module):
    """Max pooling with `same` padding by −inf, so that padding is never the maximum."""

    def forward(self, inputs: Tensor) -> Tensor:
        padded = F.pad(inputs, same_padding(inputs, 3, 2), value=-torch.inf)
        return F.max_pool2d(padded, 3, 2)


def same_padding(inputs: Tensor, kernel: int, stride: int) -> tuple[int, int, int, int]:
    """Return (left, right, top, bottom) so that ⌈size ÷ stride⌉ windows fit."""
    height, width = (
        max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in inputs.shape[2:]
    )
    return width // 2, width - width // 2, height // 2, height - height // 2


def canonical_strides(image: Tensor) -> Tensor:
    """Normalize the strides of 1 × 1 images.

    Such an image is both contiguous and channels_last, and kernels may choose either, with other
    last bits. With canonical strides the result does not depend on where stages start.
    """
    single = image.shape[2:] == (1, 1)
    return torch.unflatten(image.flatten(1), 1, (-1, 1, 1)) if single else image


class Add(nn.Module):
    def forward(self, main: Tensor, shortcut: Tensor) -> Tensor:
        return main + shortcut


class GlobalPool(nn.Module):
    """Global average pooling to a vector or to a 1 × 1 image.

    In training the mean is taken over rows of pixels, so that the gradient is channels_last like
    the image: the backward pass is twice as fast. In eval mode it is `adaptive_avg_pool2d`, which
    exporters recognize.
    """

    def __init__(self, flatten: bool = True) -> None:
        super().__init__()
        self.flatten = flatten

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            mean = inputs.permute(0, 2, 3, 1).flatten(1, 2).mean(1)[:, :, None, None]
        else:
            mean = F.adaptive_avg_pool2d(inputs, 1)
        return mean.flatten(1) if self.flatten else mean


class PadChannels(nn.Module):
    """Parameter-free shortcut: subsample by `stride` and append zero channels."""

    def __init__(self, stride: int, extra_channels: int) -> None:
        super().__init__()
        self.stride = stride
        self.extra_channels = extra_channels

    def forward(self, inputs: Tensor) -> Tensor:
        return F.pad(
            inputs[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra_channels)
        )


class Multiply(nn.Module):
    """Scale each channel by a gate (one value per channel)."""

    def forward(self, main: Tensor, gate: Tensor) -> Tensor:
        return main * gate


class Concat(nn.Module):
    def forward(self, main: Tensor, side: Tensor) -> Tensor:
        return torch.cat([main, side], 1)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),
    "relu6": nn.ReLU6,  # in place, torch would save a copy of the input
    "swish": nn.SiLU,
    "hard_swish": nn.Hardswish,
    "sigmoid": nn.Sigmoid,
    "hard_sigmoid": nn.Hardsigmoid,
}


QUANTILES = 200
PROXY_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"swish": F.silu, "relu": F.relu}


class ProxyActivation(nn.Module):
    """(act(γ·x + β) − μ) ÷ σ, with μ and σ those of act(γ·z + β), z = (1 + γ′)·quantile + β′."""

    quantiles: Tensor

    def __init__(self, spec: operations.ProxyActivationSpec) -> None:
        super().__init__()
        self.act_fn = PROXY_ACTIVATIONS[spec.kind]
        self.eps = spec.eps
        self.scaled = spec.scaled
        self.recompute = spec.recompute
        self.weight = nn.Parameter(torch.ones(spec.channels))
        self.bias = nn.Parameter(torch.zeros(spec.channels))
        self.proxy = nn.Parameter(torch.zeros(2, spec.channels))  # γ′, β′: both have weight decay
        normal = NormalDist()
        points = [normal.inv_cdf((index + 0.5) / QUANTILES) for index in range(QUANTILES)]
        self.register_buffer("quantiles", torch.tensor(points), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return _maybe_checkpoint(self._forward, inputs, self.recompute and self.training)

    def _forward(self, inputs: Tensor) -> Tensor:
        mean, scale = self.mean_and_rstd()
        outputs = self.centered(inputs, mean)
        return outputs * scale.view(-1, 1, 1) if self.scaled else outputs

    def centered(self, inputs: Tensor, mean: Tensor) -> Tensor:
        """The activation minus the proxy mean."""
        return self._act(inputs, (-1, 1, 1)) - mean.view(-1, 1, 1)

    def mean_and_rstd(self) -> tuple[Tensor, Tensor]:
        """Mean and inverse standard deviation of each channel's proxy."""
        scale, shift = self.proxy.unsqueeze(-1)
        outputs = self._act((1 + scale) * self.quantiles + shift, (-1, 1))
        variance, mean = torch.var_mean(outputs, 1, correction=0)
        return mean, torch.rsqrt(variance + self.eps)

    def _act(self, inputs: Tensor, shape: tuple[int, ...]) -> Tensor:
        return self.act_fn(self.weight.view(shape) * inputs + self.bias.view(shape))


class ProxySqueezeExcite(nn.Module):
    """Proxy activation with squeeze-and-excite; the gate is computed before the scaling."""

    def __init__(self, spec: operations.ProxySqueezeExciteSpec) -> None:
        super().__init__()
        self.act = ProxyActivation(spec.proxy)
        self.conv_reduce = build_conv(spec.reduce)
        self.conv_expand = build_conv(spec.expand)
        self.pool = GlobalPool(flatten=False)
        self.recompute = spec.proxy.recompute

    def forward(self, inputs: Tensor) -> Tensor:
        return _maybe_checkpoint(self._squeeze_excite, inputs, self.recompute and self.training)

    def _squeeze_excite(self, inputs: Tensor) -> Tensor:
        mean, scale = self.act.mean_and_rstd()
        centered = self.act.centered(inputs, mean)
        inner = self.act.act_fn(self.conv_reduce(self.pool(centered)))
        gate = torch.sigmoid(self.conv_expand(inner))
        return centered * (gate * scale.view(-1, 1, 1))


def _maybe_checkpoint(
    function: Callable[[Tensor], Tensor], inputs: Tensor, recompute: bool
) -> Tensor:
    """Run under activation checkpointing. Nothing here is random, so RNG state is not saved."""
    if not (recompute and torch.is_grad_enabled()):
        return function(inputs)
    outputs: Tensor = checkpoint(function, inputs, use_reentrant=False, preserve_rng_state=False)
    return outputs
