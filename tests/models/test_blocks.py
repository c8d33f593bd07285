"""Building blocks: convolutions, norms and activations follow the configuration."""

from dataclasses import replace

import pytest

from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.models.blocks import InitRules, LayerFactory
from convoy.models.efficientnet import efficientnet_layers
from convoy.models.layers import (
    ConvSpec,
    InitRule,
    LayerPlan,
    LinearSpec,
    MaxPoolSpec,
    NormSpec,
    PadChannelsSpec,
    Route,
)
from convoy.models.resnet import resnet_layers

INIT_RULES = {
    "pytorch": InitRules(
        InitRule.KAIMING_NORMAL_FAN_OUT, InitRule.TORCH_DEFAULT, InitRule.NORMAL_STD_001
    )
}
CONFIG = NetworkConfig(norm_num_groups=4, norm_eps=0.5, batchnorm_momentum=0.25)


def factory(config: NetworkConfig = CONFIG) -> LayerFactory:
    return LayerFactory(config, INIT_RULES)


def norms(config: NetworkConfig, **options: bool) -> list[LayerPlan]:
    return list(factory(config).norm("bn", 8, Route.SIDE, **options))


def test_input_padding_adds_a_channel_of_zeros():
    padded = replace(CONFIG, input_image_padding=True)

    assert factory().padded_input(3) == (3, [])
    assert factory(padded).padded_input(3) == (4, [LayerPlan("pad", PadChannelsSpec(1, 1))])


@pytest.mark.parametrize("padding", ["symmetric", "same"])
def test_convolutions_and_pools_use_the_configured_padding(padding: str):
    config = replace(CONFIG, conv_padding=padding, model="resnet50")
    outputs = factory(config).conv(8, 16, 3, 2)
    (pool,) = [layer for layer in resnet_layers(config, 3, 10) if layer.name == "maxpool"]

    assert outputs == ConvSpec(8, 16, 3, 2, padding=padding, init=InitRule.KAIMING_NORMAL_FAN_OUT)
    assert pool.operation == MaxPoolSpec(padding)


def test_grouped_convolutions_and_the_head_have_separate_init_rules():
    assert factory().conv(8, 16, 3, 2, 4) == ConvSpec(
        8, 16, 3, 2, groups=4, init=InitRule.TORCH_DEFAULT
    )
    assert factory().classifier(8, 10) == LinearSpec(8, 10, InitRule.NORMAL_STD_001)


def test_a_gate_has_a_bias_with_any_norm():
    assert factory().pointwise_conv(8, 2) == ConvSpec(8, 2, 1, bias=True)


def test_without_norms_a_convolution_has_a_bias():
    no_norm = replace(CONFIG, norm_type="none")

    assert norms(no_norm) == []
    assert factory(no_norm).conv(8, 8).bias and not factory().conv(8, 8).bias


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_a_norm_has_the_configured_values(kind: str):
    config = replace(CONFIG, norm_type=kind)

    assert norms(config) == [LayerPlan("bn", NormSpec(8, kind, 4, 0.5, 0.25), Route.SIDE)]


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"interleaved_groups": True}, {"enable_fast_groupnorm": True}),
        ({"stable": False}, {"stable_norm": False}),
        ({"initial_running_var": 0.0}, {"weight_init": "popart"}),
        ({}, {"weight_init": "tensorflow"}),
    ],
)
def test_an_option_changes_one_field_of_a_norm(change: dict[str, float], option: dict[str, str]):
    (default,), (changed,) = norms(CONFIG), norms(replace(CONFIG, **option))  # type: ignore[arg-type]

    assert changed.operation == replace(default.operation, **change)


@pytest.mark.parametrize(
    ("options", "scale", "offset", "zero", "parameters"),
    [
        ({}, True, True, False, 16),
        ({"zero_init": True}, True, True, True, 16),
        ({"offset": False}, True, False, False, 8),
        ({"scale": False, "offset": False}, False, False, False, 0),
    ],
)
def test_scale_and_offset_of_a_norm_are_optional(
    options: dict[str, bool], scale: bool, offset: bool, zero: bool, parameters: int
):
    ((_, norm),) = [(item.name, item.operation) for item in norms(CONFIG, **options)]

    assert isinstance(norm, NormSpec)
    assert (norm.scale, norm.offset, norm.zero_init, norm.parameters) == (
        scale,
        offset,
        zero,
        parameters,
    )


def test_a_depthwise_convolution_with_one_group_has_the_grouped_init_rule() -> None:
    config = NetworkConfig(model="efficientnet-cifar")
    layers = efficientnet_layers(config, 3, 10, FamilyConfig(group_dim=16, expand_ratio=4))
    init_by_groups = {
        layer.operation.groups: layer.operation.init
        for layer in layers
        if isinstance(layer.operation, ConvSpec) and layer.name.endswith("conv_dw")
    }

    assert 1 in init_by_groups and len(init_by_groups) > 1
    assert set(init_by_groups.values()) == {InitRule.TORCH_DEFAULT}
