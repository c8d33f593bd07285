"""The layers that torch does not have as we need them, and activations by name."""

from collections.abc import Callable
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from convoy.models import layers as operations
from convoy.models.layers import ConvSpec


def conv(spec: ConvSpec) -> nn.Conv2d:
    """A convolution whose result has the size of what it was given, divided by the stride."""
    figures = (spec.inputs, spec.outputs, spec.kernel, spec.stride)
    if spec.padding == "same" and spec.stride > 1 and spec.kernel > 1:
        return SameConv(*figures, groups=spec.groups, bias=spec.bias)
    padding = spec.kernel // 2
    return nn.Conv2d(*figures, padding, groups=spec.groups, bias=spec.bias)


class SameConv(nn.Conv2d):
    """Pads as little as its stride needs, the odd pixel at the far end."""

    def forward(self, inputs: Tensor) -> Tensor:
        padded = F.pad(inputs, far_padding(inputs, self.kernel_size[0], self.stride[0]))
        return super().forward(padded)


def max_pool(padding: str) -> nn.Module:
    """3 × 3 windows, stride 2."""
    if padding == "same":
        return SameMaxPool()
    return nn.MaxPool2d(3, stride=2, padding=1 if padding == "symmetric" else 0)


class SameMaxPool(nn.Module):
    """3 × 3 windows, stride 2, the odd pixel of the padding at the far end; padding never wins."""

    def forward(self, inputs: Tensor) -> Tensor:
        padded = F.pad(inputs, far_padding(inputs, 3, 2), value=-torch.inf)
        return F.max_pool2d(padded, 3, 2)


def far_padding(inputs: Tensor, kernel: int, stride: int) -> tuple[int, int, int, int]:
    """Left, right, top, bottom, so that ⌈size ÷ stride⌉ windows fit."""
    height, width = (
        max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in inputs.shape[2:]
    )
    return width // 2, width - width // 2, height // 2, height - height // 2


def one_way(image: Tensor) -> Tensor:
    """A single pixel may lie in memory in two ways, and sums over it may differ in their last bits.

    Behind this it lies in one way, and so does its gradient, wherever the network is cut.
    """
    single = image.shape[2:] == (1, 1)
    return torch.unflatten(image.flatten(1), 1, (-1, 1, 1)) if single else image


class Add(nn.Module):
    """The main road and the side road meet."""

    def forward(self, main: Tensor, side: Tensor) -> Tensor:
        return main + side


def mean_pixel(image: Tensor, training: bool) -> Tensor:
    """As an image of one pixel.

    In training over rows of pixels, so that the gradient lies as the image does: backward is twice
    as fast. In use as everybody knows it: other programs have an operation for that.
    """
    if not training:
        return F.adaptive_avg_pool2d(image, 1)
    return image.permute(0, 2, 3, 1).flatten(1, 2).mean(1)[:, :, None, None]


class GlobalPool(nn.Module):
    """The mean over the image, as a vector."""

    def forward(self, inputs: Tensor) -> Tensor:
        return mean_pixel(inputs, self.training).flatten(1)


class PadChannels(nn.Module):
    """A shortcut without weights: every `stride`-th pixel, zeros for the new channels."""

    def __init__(self, stride: int, added: int) -> None:
        super().__init__()
        self.stride = stride
        self.added = added

    def forward(self, inputs: Tensor) -> Tensor:
        return F.pad(inputs[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))


class Multiply(nn.Module):
    """A gate: the side road has one number a channel."""

    def forward(self, main: Tensor, side: Tensor) -> Tensor:
        return main * side


class Concat(nn.Module):
    """The channels of both roads."""

    def forward(self, main: Tensor, side: Tensor) -> Tensor:
        return torch.cat([main, side], 1)


class Squeeze(nn.Module):
    """The mean over the image, as an image of one pixel."""

    def forward(self, inputs: Tensor) -> Tensor:
        return mean_pixel(inputs, self.training)


def _relu() -> nn.Module:
    return nn.ReLU(inplace=True)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": _relu,
    "relu6": nn.ReLU6,  # in place, torch would copy what it was given and keep that
    "swish": nn.SiLU,
    "hard_swish": nn.Hardswish,
    "sigmoid": nn.Sigmoid,
    "hard_sigmoid": nn.Hardsigmoid,
}


QUANTILES = 200
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"swish": F.silu, "relu": F.relu}


class ProxyActivation(nn.Module):
    """(act(γ·x + β) − μ) ÷ σ, with μ and σ those of act(γ·z + β), z = (1 + γ′)·quantile + β′."""

    quantiles: Tensor

    def __init__(self, spec: operations.ProxyActivationSpec) -> None:
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

    def __init__(self, spec: operations.ProxySqueezeExciteSpec) -> None:
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
