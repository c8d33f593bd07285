"""Functions of each element, by the names that plans use."""

from collections.abc import Callable

from torch import nn


def _relu() -> nn.Module:
    return nn.ReLU(inplace=True)


def _relu6() -> nn.Module:
    return nn.ReLU6(inplace=True)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": _relu,
    "relu6": _relu6,
    "swish": nn.SiLU,
    "hard_swish": nn.Hardswish,
    "sigmoid": nn.Sigmoid,
    "hard_sigmoid": nn.Hardsigmoid,
}
