"""Every family in plain torch, as in its paper or published code, independent of convoy.

The modules have the published names, so weights can be copied by name.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]
Function = Callable[[Tensor], Tensor]


class Conv(nn.Conv2d):
    """A convolution with symmetric padding, or with the `same` padding of TensorFlow."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.same = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.same:
            return super().forward(x)
        kernel, stride, size = self.kernel_size[0], self.stride[0], x.shape[-1]
        missing = max(kernel - (stride if size % stride == 0 else size % stride), 0)
        before, after = missing // 2, missing - missing // 2
        x = F.pad(x, (before, after, before, after))
        return F.conv2d(x, self.weight, None, stride, groups=self.groups)


class Residual(nn.Module):
    """A basic block or a bottleneck with these convolutions."""

    def __init__(self, convs: Sequence[Conv], shortcut: Conv | None, norm: Norm) -> None:
        super().__init__()
        for index, conv in enumerate(convs, start=1):
            self.add_module(f"conv{index}", conv)
            self.add_module(f"bn{index}", norm(conv.out_channels))
        self.length = len(convs)
        self.stride = max(conv.stride[0] for conv in convs)
        self.downsample = shortcut and nn.Sequential(shortcut, norm(shortcut.out_channels))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for index in range(1, self.length + 1):
            y = self.get_submodule(f"bn{index}")(self.get_submodule(f"conv{index}")(y))
            y = F.relu(y) if index < self.length else y
        if self.downsample is not None:
            return F.relu(y + self.downsample(x))
        x = x[:, :, :: self.stride, :: self.stride]
        return F.relu(y + torch.cat([x, x.new_zeros(*y.shape)], 1)[:, : y.shape[1]])


class ResNet(nn.Module):
    """Groups of blocks after a small stem, or after a large one with max pooling."""

    def __init__(self, groups: list[list[Residual]], stem: Conv, norm: Norm, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = stem, norm(stem.out_channels)
        self.count = len(groups)
        for index, blocks in enumerate(groups, start=1):
            self.add_module(f"layer{index}", nn.Sequential(*blocks))
        self.fc = nn.Linear(outputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        if self.conv1.kernel_size[0] == 7:
            x = self.pooled(x)
        for index in range(1, self.count + 1):
            x = self.get_submodule(f"layer{index}")(x)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]

    def pooled(self, x: Tensor) -> Tensor:
        if not self.conv1.same:
            return F.max_pool2d(x, 3, 2, 1)
        before = x.shape[-1] % 2  # an even size is padded only at the end
        return F.max_pool2d(F.pad(x, (before, 1, before, 1), value=-1e9), 3, 2)


class Gate(nn.Module):
    """Squeeze-and-excite."""

    def __init__(self, channels: int, inner: int, inside: Function, outside: Function) -> None:
        super().__init__()
        self.conv_reduce = nn.Conv2d(channels, inner, 1)
        self.conv_expand = nn.Conv2d(inner, channels, 1)
        self.inside, self.outside = inside, outside

    def forward(self, x: Tensor) -> Tensor:
        mean = F.adaptive_avg_pool2d(x, 1)
        return x * self.outside(self.conv_expand(self.inside(self.conv_reduce(mean))))


class Inverted(nn.Module):
    """A block of EfficientNet or MobileNet v3, with timm's names."""

    def __init__(self, widen: Conv | None, filtering: Conv, narrow: Conv, norm: Norm) -> None:
        super().__init__()
        self.widens = widen is not None
        if widen is not None:
            self.conv_pw, self.bn1 = widen, norm(widen.out_channels)
            self.conv_dw, self.bn2 = filtering, norm(filtering.out_channels)
            self.conv_pwl, self.bn3 = narrow, norm(narrow.out_channels)
        else:
            self.conv_dw, self.bn1 = filtering, norm(filtering.out_channels)
            self.conv_pw, self.bn2 = narrow, norm(narrow.out_channels)
        inputs = (widen or filtering).in_channels
        self.is_residual = filtering.stride[0] == 1 and inputs == narrow.out_channels
        self.se: nn.Module = nn.Identity()
        self.act: Function = F.silu

    def forward(self, x: Tensor) -> Tensor:
        if self.widens:
            y = self.act(self.bn1(self.conv_pw(x)))
            y = self.se(self.act(self.bn2(self.conv_dw(y))))
            y = self.bn3(self.conv_pwl(y))
        else:
            y = self.se(self.act(self.bn1(self.conv_dw(x))))
            y = self.bn2(self.conv_pw(y))
        return x + y if self.is_residual else y


class EfficientNet(nn.Module):
    """EfficientNet: stem, groups of blocks, top."""

    def __init__(self, stem: Conv, blocks: nn.Module, top: Conv | None, norm: Norm) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = stem, norm(stem.out_channels)
        self.blocks = blocks
        self.conv_head: nn.Module = top or nn.Identity()
        self.bn2: nn.Module = norm(top.out_channels) if top else nn.Identity()
        self.act: Function = F.silu
        self.classifier = nn.LazyLinear(10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.act(self.bn1(self.conv_stem(x))))
        if isinstance(self.conv_head, Conv):
            x = self.act(self.bn2(self.conv_head(x)))
        return self.classifier(x.mean((2, 3)))  # type: ignore[no-any-return]


class MobileNetV3(nn.Module):
    """MobileNet v3 with hard swish in stem and head; the head follows the pooling."""

    def __init__(self, blocks: nn.Module, head: nn.Conv2d) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = Conv(3, 16, 3, 2), nn.BatchNorm2d(16)
        self.blocks = blocks
        self.conv_head = head
        self.classifier = nn.Linear(head.out_channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.hardswish(self.bn1(self.conv_stem(x))))
        x = F.hardswish(self.conv_head(F.adaptive_avg_pool2d(x, 1)))
        return self.classifier(x.flatten(1))  # type: ignore[no-any-return]


class Last(nn.Module):
    """The last convolution before the pooling in MobileNet v3."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.bn1 = Conv(inputs, outputs, 1), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardswish(self.bn1(self.conv(x)))


def rectified(inputs: int, outputs: int, kernel: int, stride: int, groups: int) -> nn.Sequential:
    """Convolution, norm, ReLU6."""
    conv = Conv(inputs, outputs, kernel, stride, groups)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


class InvertedV2(nn.Module):
    """A block of MobileNet v2, with torchvision's names."""

    def __init__(self, inputs: int, outputs: int, stride: int, ratio: int) -> None:
        super().__init__()
        hidden = inputs * ratio
        widen = [rectified(inputs, hidden, 1, 1, 1)] if ratio > 1 else []
        narrow = (Conv(hidden, outputs, 1), nn.BatchNorm2d(outputs))
        self.conv = nn.Sequential(*widen, rectified(hidden, hidden, 3, stride, hidden), *narrow)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.is_residual else self.conv(x)  # type: ignore[no-any-return]


class MobileNetV2(nn.Module):
    """MobileNet v2, from 32 to 1280 channels."""

    def __init__(self, blocks: list[InvertedV2]) -> None:
        super().__init__()
        first, last = rectified(3, 32, 3, 2, 1), rectified(320, 1280, 1, 1, 1)
        self.features = nn.Sequential(first, *blocks, last)
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(1280, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))  # type: ignore[no-any-return]


class Fire(nn.Module):
    """A fire module: squeeze, then expand with two kernel sizes."""

    def __init__(self, inputs: int, squeezed: int, expanded: int, bypassed: bool) -> None:
        super().__init__()
        self.squeeze = Conv(inputs, squeezed, 1)
        self.expand1x1 = Conv(squeezed, expanded, 1)
        self.expand3x3 = Conv(squeezed, expanded, 3)
        self.bypassed = bypassed

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.squeeze(x))
        y = torch.cat([F.relu(self.expand1x1(y)), F.relu(self.expand3x3(y))], 1)
        return x + y if self.bypassed else y


class SqueezeNet(nn.Module):
    """SqueezeNet: eight fire modules and three poolings, without biases."""

    def __init__(self, bypass: bool) -> None:
        super().__init__()
        self.conv1 = Conv(3, 96, 7, 2)
        squeezed = (16, 16, 32, 32, 48, 48, 64, 64)
        widths = (96, *(8 * item for item in squeezed))
        for number, (inputs, outputs) in enumerate(pairwise(widths), start=2):
            fire = Fire(inputs, outputs // 8, outputs // 2, bypass and number % 2 == 1)
            self.add_module(f"fire{number}", fire)
        self.conv10 = Conv(512, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 3, 2)
        for number in range(2, 10):
            x = self.get_submodule(f"fire{number}")(x)
            if number in (4, 8):
                x = F.max_pool2d(x, 3, 2)
        return self.conv10(x).mean((2, 3))
