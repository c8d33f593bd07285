"""SqueezeNet: fire modules with and without a bypass, pools without padding, no norms."""

from typing import Any

import pytest
from support.model_families import Small

from convoy.models.layers import ConvSpec, DropoutSpec, LayerPlan, MaxPoolSpec, NormSpec, Route
from convoy.models.network import NetworkPlan


def plan(size: int = 224, **options: Any) -> NetworkPlan:
    return Small({"model": "squeezenet", **options}, size).plan


def fire(number: int, network: NetworkPlan) -> list[tuple[str, Route]]:
    start = f"fire{number}/"
    return [
        (layer.name.removeprefix(start), layer.route)
        for layer in network.layers
        if start in layer.name
    ]


FIRE_LAYERS = [
    ("squeeze_relu", Route.MAIN),
    ("expand1x1", Route.FORK),
    ("expand3x3", Route.SIDE),
    ("concat", Route.JOIN),
    ("relu", Route.MAIN),
]


def test_a_fire_module_has_two_expansions():
    assert fire(3, plan()) == [("squeeze", Route.MAIN), *FIRE_LAYERS]


@pytest.mark.parametrize("number", [3, 5, 7, 9])
def test_every_second_fire_module_has_a_bypass(number: int):
    bypassed = plan(use_bypass=True)

    assert fire(number, bypassed) == [("squeeze", Route.FORK), *FIRE_LAYERS, ("add", Route.JOIN)]
    assert fire(number - 1, bypassed) == [("squeeze", Route.MAIN), *FIRE_LAYERS]


def test_images_shrink_to_thirteen_pixels_before_the_classes():
    costs = {cost.name: cost.output_shapes[0] for cost in plan(227).costs}

    assert [costs[name].size for name in ("conv1", "pool1", "pool4", "pool8", "conv10")] == (
        [114, 56, 27, 13, 13]
    )
    assert (costs["fire9/relu"].channels, costs["avgpool"].channels) == (512, 10)


def test_unpadded_pools_follow_the_stem_and_two_fire_modules():
    layers = plan().layers
    names = [layer.name for layer in layers]
    pools = [layer.name for layer in layers if isinstance(layer.operation, MaxPoolSpec)]

    assert pools == ["pool1", "pool4", "pool8"]
    assert [names[names.index(pool) - 1] for pool in pools] == ["relu1", "fire4/relu", "fire8/relu"]
    assert {layer.operation for layer in layers if layer.name in pools} == {MaxPoolSpec("none")}


@pytest.mark.parametrize("norm_type", ["batch", "group", "none"])
def test_no_layer_has_a_norm_or_a_bias(norm_type: str):
    operations = [layer.operation for layer in plan(norm_type=norm_type).layers]

    assert not any(isinstance(operation, NormSpec) for operation in operations)
    assert not any(isinstance(operation, ConvSpec) and operation.bias for operation in operations)


def dropouts(layers: tuple[LayerPlan, ...]) -> list[DropoutSpec]:
    return [layer.operation for layer in layers if isinstance(layer.operation, DropoutSpec)]


def test_the_default_dropout_before_the_last_convolution_is_a_half():
    assert dropouts(plan().layers) == [DropoutSpec(0.5)]
    assert dropouts(plan(dropout_rate=0.1).layers) == [DropoutSpec(0.1)]
    assert dropouts(plan(dropout_rate=0.0).layers) == []
