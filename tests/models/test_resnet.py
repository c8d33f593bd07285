"""The ResNet family: published parameter counts, strides, shortcuts and norms."""

from dataclasses import replace

import pytest
import torch
from support.networks import short_name

from convoy.config.schema import RunConfig
from convoy.config.sections.network import NetworkConfig
from convoy.errors import ConfigError
from convoy.layers.build import build_layers
from convoy.models.layers import ConvSpec, LayerPlan, NormSpec, PadChannelsSpec, Route
from convoy.models.network import plan_network
from convoy.models.resnet import resnet_layers

SMALL = {8: 75_290, 14: 172_506, 20: 269_722, 32: 464_154, 44: 658_586, 56: 853_018, 110: 1_727_962}
LARGE = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}

# Four input channels and shortcut B: 10 classes with the small stem, 1000 with the large one.
FOUR_CHANNELS = {
    8: (78_186, 145_096),
    14: (175_402, 242_312),
    20: (272_618, 339_528),
    32: (467_050, 533_960),
    44: (661_482, 728_392),
    56: (855_914, 922_824),
    110: (1_730_858, 1_797_768),
    18: (11_174_538, 11_692_648),
    34: (21_282_698, 21_800_808),
    50: (23_521_418, 25_560_168),
    101: (42_513_546, 44_552_296),
    152: (58_157_194, 60_195_944),
}


def count_planned_parameters(layers: tuple[LayerPlan, ...]) -> int:
    return sum(layer.operation.parameters for layer in layers)


def count_built_parameters(layers: tuple[LayerPlan, ...]) -> int:
    """The parameters of modules on the meta device."""
    with torch.device("meta"):
        modules = build_layers(layers, seed=0).values()
    return sum(weight.numel() for module in modules for weight in module.parameters())


def operations(
    config: NetworkConfig, kind: type[ConvSpec] | type[NormSpec]
) -> dict[str, ConvSpec | NormSpec]:
    return {
        layer.name: layer.operation
        for layer in resnet_layers(config, 3, 10)
        if isinstance(layer.operation, kind)
    }


@pytest.mark.parametrize(("depth", "parameters"), SMALL.items())
def test_small_networks_have_their_published_parameters(depth: int, parameters: int):
    config = NetworkConfig(model=f"resnet{depth}")
    cifar10, cifar100 = (resnet_layers(config, 3, classes) for classes in (10, 100))

    assert (count_planned_parameters(cifar10), count_built_parameters(cifar10)) == (
        parameters,
        parameters,
    )
    assert (count_planned_parameters(cifar100), count_built_parameters(cifar100)) == (
        parameters + 5_850,
        parameters + 5_850,
    )


@pytest.mark.parametrize(("depth", "parameters"), LARGE.items())
def test_large_networks_have_the_parameters_of_torchvision(depth: int, parameters: int):
    layers = resnet_layers(NetworkConfig(model=f"resnet{depth}"), 3, 1000)

    assert (count_planned_parameters(layers), count_built_parameters(layers)) == (
        parameters,
        parameters,
    )


@pytest.mark.parametrize("norm_type", ["batch", "group"])
@pytest.mark.parametrize(("depth", "parameters"), FOUR_CHANNELS.items())
def test_either_stem_fits_any_depth(depth: int, parameters: tuple[int, int], norm_type: str):
    config = NetworkConfig(
        model=f"resnet{depth}", shortcut_type="B", norm_type=norm_type, norm_num_groups=16
    )
    small = resnet_layers(replace(config, stem="small"), 4, 10)
    large = resnet_layers(replace(config, stem="large"), 4, 1000)

    assert (count_planned_parameters(small), count_planned_parameters(large)) == parameters
    assert (count_built_parameters(small), count_built_parameters(large)) == parameters


@pytest.mark.parametrize(("version", "strided"), [("v1", "conv1"), ("v1.5", "conv2")])
def test_the_resnet_version_decides_which_convolution_has_the_stride(version: str, strided: str):
    convs = operations(NetworkConfig(model="resnet50", resnet_version=version), ConvSpec)
    strided_convs = {
        name for name, conv in convs.items() if isinstance(conv, ConvSpec) and conv.stride == 2
    }

    assert strided_convs == {
        "conv1",
        *(f"layer{group}/0/{strided}" for group in (2, 3, 4)),
        *(f"layer{group}/0/downsample/0" for group in (2, 3, 4)),
    }


@pytest.mark.parametrize("version", ["v1", "v1.5"])
def test_a_basic_block_has_the_stride_in_its_first_convolution_in_both_versions(version: str):
    convs = operations(NetworkConfig(model="resnet8", resnet_version=version), ConvSpec)
    strided_convs = [
        name for name, conv in convs.items() if isinstance(conv, ConvSpec) and conv.stride == 2
    ]

    assert strided_convs == ["layer2/0/conv1", "layer3/0/conv1"]


@pytest.mark.parametrize("model", ["resnet8", "resnet50"])
def test_without_norms_every_convolution_has_a_bias(model: str):
    no_norm = NetworkConfig(model=model, norm_type="none")

    assert operations(no_norm, NormSpec) == {}
    assert all(
        isinstance(conv, ConvSpec) and conv.bias for conv in operations(no_norm, ConvSpec).values()
    )


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_with_norms_no_convolution_has_a_bias_and_each_is_normalized(kind: str):
    config = NetworkConfig(model="resnet50", norm_type=kind)
    convs, norms = operations(config, ConvSpec), operations(config, NormSpec)

    assert not any(isinstance(conv, ConvSpec) and conv.bias for conv in convs.values())
    assert len(convs) == len(norms) == 53


@pytest.mark.parametrize(
    ("model", "groups", "layer", "channels", "suggested"),
    [
        ("resnet8", 32, "bn1", 16, 16),
        ("resnet20", 12, "bn1", 16, 8),
        ("resnet50", 48, "bn1", 64, 32),
        ("resnet18", 1000, "bn1", 64, 64),
    ],
)
def test_norm_groups_that_do_not_divide_the_channels_are_refused_with_a_fix(
    model: str, groups: int, layer: str, channels: int, suggested: int
):
    config = NetworkConfig(model=model, norm_type="group", norm_num_groups=groups)
    with pytest.raises(ConfigError) as refused:
        plan_network(RunConfig(network=config))

    message = str(refused.value)
    assert f"--norm-num-groups {groups} does not divide the {channels} channels" in message
    assert f"of {layer}" in message and message.endswith(f"try {suggested}")
    assert plan_network(RunConfig(network=replace(config, norm_num_groups=suggested)))


def test_the_number_of_groups_only_affects_group_norm():
    assert resnet_layers(NetworkConfig(model="resnet8", norm_num_groups=7), 3, 10)


@pytest.mark.parametrize("depth", [8, 110])
def test_names_are_unique_and_match_torchvision(depth: int):
    names = [layer.name for layer in resnet_layers(NetworkConfig(model=f"resnet{depth}"), 3, 10)]

    assert len(set(names)) == len(names)
    assert names[:3] == ["conv1", "bn1", "relu"]
    assert names[-2:] == ["avgpool", "fc"]


def test_the_layers_of_a_block_with_a_projection():
    layers = resnet_layers(NetworkConfig(model="resnet50"), 3, 10)
    block = [
        (layer.name[9:], layer.route) for layer in layers if layer.name.startswith("layer2/0/")
    ]

    assert block == [
        ("conv1", Route.FORK),
        ("bn1", Route.MAIN),
        ("relu1", Route.MAIN),
        ("conv2", Route.MAIN),
        ("bn2", Route.MAIN),
        ("relu2", Route.MAIN),
        ("conv3", Route.MAIN),
        ("bn3", Route.MAIN),
        ("downsample/0", Route.SIDE),
        ("downsample/1", Route.SIDE),
        ("add", Route.JOIN),
        ("relu", Route.MAIN),
    ]


@pytest.mark.parametrize(
    ("model", "shortcut", "projected", "padded"),
    [
        ("resnet8", "auto", [], ["layer2/0", "layer3/0"]),
        ("resnet8", "B", ["layer2/0", "layer3/0"], []),
        ("resnet8", "C", ["layer1/0", "layer2/0", "layer3/0"], []),
        ("resnet18", "auto", ["layer2/0", "layer3/0", "layer4/0"], []),
        ("resnet18", "A", [], ["layer2/0", "layer3/0", "layer4/0"]),
        ("resnet50", "auto", ["layer1/0", "layer2/0", "layer3/0", "layer4/0"], []),
    ],
)
def test_shortcuts_follow_the_shortcut_type(
    model: str, shortcut: str, projected: list[str], padded: list[str]
):
    layers = resnet_layers(NetworkConfig(model=model, shortcut_type=shortcut), 3, 10)
    shortcuts = [layer for layer in layers if layer.name.endswith("downsample/0")]

    assert [_block(item) for item in shortcuts if isinstance(item.operation, ConvSpec)] == projected
    assert [
        _block(item) for item in shortcuts if isinstance(item.operation, PadChannelsSpec)
    ] == padded


def _block(layer: LayerPlan) -> str:
    return layer.name.removesuffix("/downsample/0")


@pytest.mark.parametrize(
    "config",
    [
        NetworkConfig(model="resnet14"),
        NetworkConfig(model="resnet18"),
        NetworkConfig(model="resnet50"),
        NetworkConfig(model="resnet50", shortcut_type="C"),
        NetworkConfig(model="resnet50", norm_type="group"),
    ],
    ids=short_name,
)
def test_the_last_norm_starts_at_zero_in_bottlenecks_without_projection_and_nowhere_else(
    config: NetworkConfig,
):
    norms = operations(config, NormSpec)
    projected = {name.removesuffix("/downsample/1") for name in norms if "downsample" in name}
    plain = {
        name
        for name in norms
        if name.endswith("/bn3") and name.removesuffix("/bn3") not in projected
    }

    assert {
        name for name, norm in norms.items() if isinstance(norm, NormSpec) and norm.zero_init
    } == plain


def test_by_default_no_norm_starts_at_zero():
    norms = operations(NetworkConfig(model="resnet50", zero_init_last_norm=False), NormSpec)

    assert not any(isinstance(norm, NormSpec) and norm.zero_init for norm in norms.values())
