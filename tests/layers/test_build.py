"""Layers built from their plans have weights that depend only on seed and name."""

import math
from collections.abc import Mapping

import pytest
import torch
from support.networks import bottleneck_layers, build_slice, small_layers
from torch import Tensor, nn

from convoy.config.sections.network import NetworkConfig
from convoy.layers.build import build_layers
from convoy.layers.norms import BatchNorm
from convoy.models.layers import ConvSpec, LayerPlan, LinearSpec, NormSpec
from convoy.models.resnet import resnet_layers


def weights(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }


def equal(left: Mapping[str, nn.Module], right: Mapping[str, nn.Module]) -> bool:
    actual, reference = weights(left), weights(right)
    return actual.keys() == reference.keys() and all(
        torch.equal(actual[name], reference[name]) for name in actual
    )


@pytest.mark.parametrize("norm_type", ["batch", "group", "none"])
def test_weights_do_not_depend_on_the_order_of_building(norm_type: str):
    layers = small_layers(norm_type)

    assert equal(build_layers(layers, seed=3), build_layers(layers[::-1], seed=3))


def test_a_layer_built_separately_has_the_weights_of_the_network():
    layers = small_layers()
    full = build_layers(layers, seed=3)

    for layer in layers:
        assert equal(build_layers([layer], seed=3), {layer.name: full[layer.name]}), layer.name


def test_weights_do_not_depend_on_earlier_layers():
    layers = small_layers()
    torch.manual_seed(1)
    first = build_layers(layers, seed=3)
    torch.manual_seed(2)

    assert equal(first, build_layers(layers, seed=3))


def test_layers_may_be_an_iterator():
    layers = small_layers()

    assert equal(build_layers(iter(layers), seed=3), build_layers(layers, seed=3))


def test_weights_depend_on_the_seed():
    layers = small_layers("none")
    first, second = (weights(build_layers(layers, seed)) for seed in (3, 4))
    random = [name for name, tensor in first.items() if tensor.any()]

    assert len(random) == 7 + 2  # the convolutions, and the head with its bias
    assert not any(torch.equal(first[name], second[name]) for name in random)


def test_layers_of_one_shape_have_different_weights():
    layers = resnet_layers(NetworkConfig(model="resnet20"), 3, 10)
    built = weights(build_layers(layers, seed=0))
    same_shape = [tensor for tensor in built.values() if tensor.shape == (16, 16, 3, 3)]
    sums = {float(tensor.double().sum()) for tensor in same_shape}

    assert len(sums) == len(same_shape) == 6


def test_norms_start_at_one_or_at_zero_with_zero_init():
    layers = bottleneck_layers()
    built = build_layers(layers, seed=0)
    starts = {
        layer.name: float(built[layer.name].get_parameter("weight").detach().unique())
        for layer in layers
        if isinstance(layer.operation, NormSpec)
    }

    assert {name for name, start in starts.items() if start == 0} == {
        "layer1/1/bn3",
        "layer2/1/bn3",
    }
    assert set(starts.values()) == {0.0, 1.0}


def test_running_statistics_start_at_zero_and_one():
    norms = [
        layer for layer in build_layers(small_layers(), 0).values() if isinstance(layer, BatchNorm)
    ]

    assert not any(norm.running_mean.any() for norm in norms)
    assert all((norm.running_var == 1).all() for norm in norms)


@pytest.mark.parametrize(
    "operation",
    [
        ConvSpec(3, 64, 7, 2),
        ConvSpec(64, 64, 3),
        ConvSpec(64, 256, 1),
        ConvSpec(256, 128, 1, bias=True),
    ],
)
def test_convolutions_use_kaiming_init(operation: ConvSpec):
    (module,) = build_layers([LayerPlan("conv", operation)], seed=0).values()
    samples = module.get_parameter("weight").detach().double()
    deviation = math.sqrt(2 / (operation.outputs * operation.kernel**2))
    standard_error = deviation / math.sqrt(samples.numel())  # of the mean
    tails = (samples.abs() > 2 * deviation).double().mean()

    assert abs(float(samples.mean())) < 5 * standard_error
    assert float(samples.std()) == pytest.approx(deviation, rel=5 / math.sqrt(2 * samples.numel()))
    assert float(tails) == pytest.approx(0.0455, abs=0.01)  # as in a normal distribution
    assert not operation.bias or not module.get_parameter("bias").any()


def test_the_head_has_the_uniform_init_of_torch():
    (module,) = build_layers([LayerPlan("fc", LinearSpec(400, 1000))], seed=0).values()
    samples, bias = (module.get_parameter(name).detach() for name in ("weight", "bias"))
    bound = 1 / math.sqrt(400)

    assert float(samples.abs().max()) <= bound and float(bias.abs().max()) <= bound
    assert float(samples.std()) == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert float(bias.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_a_resnet50_has_the_tensors_of_torchvision():
    with torch.device("meta"):
        network = build_slice(resnet_layers(NetworkConfig(model="resnet50"), 3, 1000))
    shapes = {name: tuple(tensor.shape) for name, tensor in network.named_tensors().items()}

    assert len(shapes) == 267  # 320 in torchvision, 53 of them num_batches_tracked
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
    assert shapes["layer1.0.downsample.1.running_mean"] == (256,)
    assert shapes["layer3.5.conv2.weight"] == (256, 256, 3, 3)
    assert shapes["layer4.2.bn3.running_var"] == (2048,)
    assert shapes["fc.weight"] == (1000, 2048) and shapes["fc.bias"] == (1000,)


@pytest.mark.parametrize("layers", [small_layers(), bottleneck_layers()])
def test_a_new_network_has_finite_logits_of_moderate_size(layers: tuple[LayerPlan, ...]):
    rng = torch.Generator().manual_seed(0)
    (logits,) = build_slice(layers)(torch.randn(8, 3, 32, 32, generator=rng))

    assert bool(torch.isfinite(logits).all())
    assert 0.01 < float(logits.detach().std()) < 10
