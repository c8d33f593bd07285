"""Functions of each element, by the names that plans use."""

from collections.abc import Callable

from torch import nn


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
