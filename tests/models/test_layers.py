"""Planned shapes and costs of layers against torch."""

import pytest
import torch
from support.networks import CLASSES, short_name
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from convoy.config.sections.network import NetworkConfig
from convoy.layers.build import build_layers
from convoy.models.layers import (
    ActivationSpec,
    AddSpec,
    ConvSpec,
    GlobalPoolSpec,
    LayerPlan,
    LinearSpec,
    MaxPoolSpec,
    NormSpec,
    PadChannelsSpec,
    Route,
    Shape,
    layer_costs,
    layer_input,
)
from convoy.models.resnet import resnet_layers
from convoy.parallel.slice import Slice

SIZES = (8, 31, 32, 33, 225)
NETWORKS = [
    NetworkConfig(model="resnet8"),
    NetworkConfig(model="resnet14", shortcut_type="B", norm_type="none"),
    NetworkConfig(model="resnet8", stem="large", shortcut_type="C"),
    NetworkConfig(model="resnet18", shortcut_type="A"),
    NetworkConfig(model="resnet50", resnet_version="v1"),
    NetworkConfig(model="resnet50", norm_type="group"),
]


def norm(channels: int) -> NormSpec:
    return NormSpec(channels, "batch", groups=1, eps=1e-5, momentum=0.1)


def as_shape(tensor: Tensor) -> Shape:
    """The shape of a tensor; a vector counts as an image of one pixel."""
    _, channels, *sizes = tensor.shape
    height, width = sizes or (1, 1)
    assert height == width
    return Shape(channels, height)


def test_a_bundle_grows_at_a_fork_and_shrinks_at_a_join():
    layers = (
        LayerPlan("a", ConvSpec(3, 4, 3), Route.FORK),
        LayerPlan("b", ActivationSpec("relu")),
        LayerPlan("c", ConvSpec(3, 4, 1), Route.SIDE),
        LayerPlan("d", AddSpec(), Route.JOIN),
    )
    costs = layer_costs(layers, Shape(3, 8))
    inputs, outputs = Shape(3, 8), Shape(4, 8)

    assert [cost.input_shapes for cost in costs] == [
        (inputs,),
        (outputs, inputs),
        (outputs, inputs),
        (outputs, outputs),
    ]
    assert costs[-1].output_shapes == (outputs,)


def test_a_side_branch_may_skip_an_entire_block():
    layers = (
        LayerPlan("a", ConvSpec(3, 4, 3), Route.FORK),
        LayerPlan("b", ConvSpec(4, 5, 3), Route.FORK),
        LayerPlan("c", ConvSpec(4, 5, 1), Route.SIDE),
        LayerPlan("d", AddSpec(), Route.JOIN),
        LayerPlan("e", ActivationSpec("relu")),
    )
    bundles = [cost.output_shapes for cost in layer_costs(layers, Shape(3, 8))]

    assert [[shape.channels for shape in bundle] for bundle in bundles] == [
        [4, 3],
        [5, 4, 3],
        [5, 5, 3],
        [5, 3],
        [5, 3],
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("config", NETWORKS, ids=short_name)
def test_every_bundle_has_the_shapes_of_a_forward_pass(config: NetworkConfig, size: int):
    layers = resnet_layers(config, 3, CLASSES)
    costs = layer_costs(layers, Shape(3, size))
    with torch.device("meta"):
        modules = build_layers(layers, seed=0)
        bundle: tuple[Tensor, ...] = (torch.empty(2, 3, size, size),)
        for layer, cost in zip(layers, costs, strict=True):
            assert tuple(map(as_shape, bundle)) == cost.input_shapes
            bundle = Slice([layer], modules)(*bundle)

            assert tuple(map(as_shape, bundle)) == cost.output_shapes


@pytest.mark.parametrize("size", [8, 33])
@pytest.mark.parametrize("config", NETWORKS, ids=short_name)
def test_multiply_adds_are_half_of_the_flops_counted_by_torch(config: NetworkConfig, size: int):
    layers = resnet_layers(config, 3, CLASSES)
    for layer, cost in zip(layers, layer_costs(layers, Shape(3, size)), strict=True):
        if not isinstance(layer.operation, ConvSpec | LinearSpec):
            continue
        inputs = layer_input(layer.route, cost.input_shapes)
        pixels = () if isinstance(layer.operation, LinearSpec) else (inputs.size, inputs.size)
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            build_layers([layer], seed=0)[layer.name](torch.empty(5, inputs.channels, *pixels))

        assert counter.get_total_flops() == 5 * 2 * cost.macs


def test_a_norm_costs_one_unit_of_work_per_value_and_no_multiply_add():
    inputs = Shape(6, 10)

    assert (norm(6).macs(inputs), norm(6).work(inputs)) == (0, 600)
    assert [
        item.work(inputs)
        for item in (
            ActivationSpec("relu"),
            AddSpec(),
            MaxPoolSpec(),
            GlobalPoolSpec(),
            PadChannelsSpec(2, 6),
        )
    ] == [0, 0, 0, 0, 0]


def test_resnet50_has_its_published_cost():
    layers = resnet_layers(NetworkConfig(model="resnet50"), 3, 1000)

    assert sum(cost.macs for cost in layer_costs(layers, Shape(3, 224))) == 4_089_184_256
