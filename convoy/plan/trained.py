"""The weights that are trained: of layers that are not frozen, those `--variable-filter` names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convoy.config.values import spelled
from convoy.errors import ConfigError
from convoy.plan.layers import LayerPlan
from convoy.plan.operations import Conv, Linear, Norm, Operation
from convoy.plan.proxy_operations import ProxyActivation, ProxySqueezeExcite


@dataclass(frozen=True)
class Weight:
    """A parameter, before it exists."""

    name: str
    elements: int
    word: str = ""  # what other programs call it

    @property
    def full_name(self) -> str:
        """All that it may be called."""
        return f"{self.name} {self.word}" if self.word else self.name


def weights_of(layer: LayerPlan) -> list[Weight]:
    """All of a layer."""
    return [*_weights(layer.name.replace("/", "."), layer.operation)]


def _weights(name: str, operation: Operation) -> Iterator[Weight]:
    match operation:
        case Conv() | Linear():
            biases = operation.outputs if isinstance(operation, Linear) or operation.bias else 0
            yield Weight(f"{name}.weight", operation.parameters - biases)
            if biases:
                yield Weight(f"{name}.bias", biases)
        case Norm():
            if operation.scale:
                yield Weight(f"{name}.weight", operation.channels, "gamma")
            if operation.offset:
                yield Weight(f"{name}.bias", operation.channels, "beta")
        case ProxyActivation():
            yield Weight(f"{name}.weight", operation.channels, "gamma")
            yield Weight(f"{name}.bias", operation.channels, "beta")
            yield Weight(f"{name}.proxy", 2 * operation.channels, "proxy")
        case ProxySqueezeExcite():
            yield from _weights(f"{name}.act", operation.proxy)
            yield from _weights(f"{name}.conv_reduce", operation.reduce)
            yield from _weights(f"{name}.conv_expand", operation.expand)
        case _:
            assert not operation.parameters, f"the weights of {name} have no names"


def trained_parameters(
    layers: Sequence[LayerPlan], frozen: int, parts: Sequence[str]
) -> tuple[int, ...]:
    """How many of each layer change, if the first ones are frozen."""
    counts = [
        sum(one.elements for one in weights_of(layer) if _is_named(one, parts)) for layer in layers
    ]
    counts[:frozen] = [0] * frozen
    if parts and not any(counts):
        some = next(one.name for layer in layers[frozen:] for one in weights_of(layer))
        raise ConfigError(
            f"--variable-filter {spelled(tuple(parts))} leaves nothing to train: no weight has "
            f"that in its name; they are called like {some}"
        )
    return tuple(counts)


def _is_named(weight: Weight, parts: Sequence[str]) -> bool:
    return not parts or any(part in weight.full_name for part in parts)
