"""The names of a network's parameters, as checkpoints and patterns call them, before any exists."""

from collections.abc import Iterable, Iterator

from convoy.plan.layers import LayerPlan
from convoy.plan.operations import Conv, Linear, Norm, Operation
from convoy.plan.proxy_operations import ProxyActivation, ProxySqueezeExcite


def parameter_names(layers: Iterable[LayerPlan]) -> list[str]:
    """In the order of the layers: `layer1.0.conv1.weight`, …"""
    return [
        f"{layer.name.replace('/', '.')}.{word}"
        for layer in layers
        for word in _words(layer.operation)
    ]


def _words(operation: Operation) -> Iterator[str]:
    match operation:
        case Conv(bias=has_bias):
            yield from ("weight", "bias") if has_bias else ("weight",)
        case Linear():
            yield from ("weight", "bias")
        case Norm(scale=has_scale, offset=has_offset):
            yield from ("weight",) if has_scale else ()
            yield from ("bias",) if has_offset else ()
        case ProxyActivation():
            yield from ("weight", "bias", "proxy")
        case ProxySqueezeExcite(proxy, reduce, expand):
            for name, part in (("act", proxy), ("conv_reduce", reduce), ("conv_expand", expand)):
                yield from (f"{name}.{word}" for word in _words(part))
