"""The layers that torch does not have as we need them, and activations by name."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convoy.models.operations import ConvSpec


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
