"""The networks of `models.py` in plain torch.

Their parameters have the same order as convoy's, so that weights can be copied one by one.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Act = Callable[[], nn.Module]
relu: Act = partial(nn.ReLU, inplace=True)
relu6: Act = partial(nn.ReLU6, inplace=True)
silu: Act = partial(nn.SiLU, inplace=True)
hard_swish: Act = partial(nn.Hardswish, inplace=True)


def conv_norm(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    """A bottleneck block of ResNet; with groups, of ResNeXt."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *conv_norm(inputs, inner),
            relu(),
            *conv_norm(inner, inner, 3, stride, groups),
            relu(),
            *conv_norm(inner, outputs),
        )
        downsample = conv_norm(inputs, outputs, 1, stride) if inputs != outputs else []
        self.shortcut = nn.Sequential(*downsample)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.shortcut(x), inplace=True)


def resnet50(groups: int = 1, widening: int = 1) -> nn.Module:
    layers: list[nn.Module] = [*conv_norm(3, 64, 7, 2), relu(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for group, blocks in enumerate((3, 4, 6, 3)):
        inner, outputs = 64 * widening * 2**group, 256 * 2**group
        for block in range(blocks):
            stride = 2 if block == 0 and group else 1
            layers.append(Bottleneck(inputs, inner, outputs, stride, groups))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class SqueezeExcite(nn.Module):
    """Squeeze-and-excite, also known as channel attention."""

    def __init__(self, channels: int, inner: int, act: Act, gate: nn.Module) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, inner, 1)
        self.act = act()
        self.expand = nn.Conv2d(inner, channels, 1)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        reduced = self.act(self.reduce(x.mean((2, 3), keepdim=True)))
        return x * self.gate(self.expand(reduced))


class InvertedResidual(nn.Module):
    """Expand, depthwise convolution, squeeze-and-excite, project."""

    def __init__(
        self,
        widths: tuple[int, int, int],
        kernel: int,
        stride: int,
        act: Act,
        squeeze_excite: nn.Module | None = None,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        inputs, hidden, outputs = widths
        layers = [*conv_norm(inputs, hidden), act()] if hidden != inputs else []
        layers += [*conv_norm(hidden, hidden, kernel, stride, hidden), act()]
        layers += [squeeze_excite] if squeeze_excite else []
        self.layers = nn.Sequential(*layers, *conv_norm(hidden, outputs))
        self.has_shortcut = stride == 1 and inputs == outputs
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        output = self.layers(x)
        if not self.has_shortcut:
            return output
        if self.drop and self.training:  # stochastic depth
            mask = output.new_empty(len(output), 1, 1, 1).bernoulli_(1 - self.drop)
            output = output * mask.div_(1 - self.drop)
        return output + x


def efficientnet_b0() -> nn.Module:
    layers: list[nn.Module] = [*conv_norm(3, 32, 3, 2), silu()]
    groups = [(3, 1, 16, 1), (3, 2, 24, 2), (5, 2, 40, 2), (3, 3, 80, 2)]
    groups += [(5, 3, 112, 1), (5, 4, 192, 2), (3, 1, 320, 1)]
    inputs, number = 32, 0
    for index, (kernel, repeats, outputs, stride) in enumerate(groups):
        for repeat in range(repeats):
            hidden = inputs * (6 if index else 1)
            attention = SqueezeExcite(hidden, inputs // 4, silu, nn.Sigmoid())
            widths, first = (inputs, hidden, outputs), 1 if repeat else stride
            layers.append(
                InvertedResidual(widths, kernel, first, silu, attention, 0.2 * number / 16)
            )
            inputs, number = outputs, number + 1
    layers += [*conv_norm(320, 1280), silu(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(1280, 1000))


def mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [*conv_norm(3, 32, 3, 2), relu6()]
    groups = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]
    inputs = 32
    for ratio, outputs, repeats, stride in [*groups, (6, 160, 3, 2), (6, 320, 1, 1)]:
        for repeat in range(repeats):
            widths = (inputs, inputs * ratio, outputs)
            layers.append(InvertedResidual(widths, 3, 1 if repeat else stride, relu6))
            inputs = outputs
    layers += [*conv_norm(320, 1280), relu6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(1280, 1000))


# Hidden channels, output channels, kernel, stride, squeeze-and-excite, hard swish.
_V3_LARGE = [
    (16, 16, 3, 1, 0, 0),
    (64, 24, 3, 2, 0, 0),
    (72, 24, 3, 1, 0, 0),
    (72, 40, 5, 2, 1, 0),
    (120, 40, 5, 1, 1, 0),
    (120, 40, 5, 1, 1, 0),
    (240, 80, 3, 2, 0, 1),
    (200, 80, 3, 1, 0, 1),
    (184, 80, 3, 1, 0, 1),
    (184, 80, 3, 1, 0, 1),
    (480, 112, 3, 1, 1, 1),
    (672, 112, 3, 1, 1, 1),
    (672, 160, 5, 2, 1, 1),
    (960, 160, 5, 1, 1, 1),
    (960, 160, 5, 1, 1, 1),
]


def mobilenet_v3_large() -> nn.Module:
    layers: list[nn.Module] = [*conv_norm(3, 16, 3, 2), hard_swish()]
    inputs = 16
    for hidden, outputs, kernel, stride, attends, hard in _V3_LARGE:
        inner = -(-hidden // 32) * 8
        attention = SqueezeExcite(hidden, inner, relu, nn.Hardsigmoid()) if attends else None
        act = hard_swish if hard else relu
        layers.append(InvertedResidual((inputs, hidden, outputs), kernel, stride, act, attention))
        inputs = outputs
    layers += [*conv_norm(160, 960), hard_swish(), nn.AdaptiveAvgPool2d(1)]
    layers += [nn.Conv2d(960, 1280, 1, bias=False), hard_swish(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(1280, 1000))


class Fire(nn.Module):
    """Squeeze, then expand with 1 × 1 and 3 × 3 convolutions."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1, bias=False)
        self.expand1 = nn.Conv2d(squeezed, expanded, 1, bias=False)
        self.expand3 = nn.Conv2d(squeezed, expanded, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x), inplace=True)
        return F.relu(torch.cat([self.expand1(x), self.expand3(x)], 1), inplace=True)


def squeezenet() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 7, 2, 3, bias=False), relu(), nn.MaxPool2d(3, 2)]
    inputs = 96
    for number, squeezed in enumerate((16, 16, 32, 32, 48, 48, 64, 64), start=2):
        layers.append(Fire(inputs, squeezed, 4 * squeezed))
        inputs = 8 * squeezed
        layers += [nn.MaxPool2d(3, 2)] if number in (4, 8) else []
    layers += [nn.Dropout(0.5), nn.Conv2d(inputs, 1000, 1, bias=False)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "resnet50": resnet50,
    "resnext50": partial(resnet50, groups=32, widening=2),
    "efficientnet-b0": efficientnet_b0,
    "mobilenet": mobilenet_v2,
    "mobilenet-v3-large": mobilenet_v3_large,
    "squeezenet": squeezenet,
}
