"""Which networks of torchvision and timm are those that convoy builds."""

from typing import Any

import pytest

from convoy.config.schema import RunConfig, build_config
from convoy.weights.library_networks import (
    LIBRARY_NETWORKS,
    TIMM,
    TORCHVISION,
    LibraryNetwork,
    ambiguity,
    choose_origin,
    different_options,
    explain_difference,
    find_candidates,
    name_in,
    same_network,
)

TF = {"norm_eps": 0.001, "conv_padding": "same"}


def config_of(model: str, **options: Any) -> RunConfig:
    return build_config({"model": model, "data": "generated", **options})


def names_of(config: RunConfig) -> tuple[str | None, str | None]:
    """The names of a network in torchvision and timm, if they have it."""
    found = (same_network(config, 10, library) for library in (TORCHVISION, TIMM))
    first, second = (None if network is None else network.name for network in found)
    return first, second


@pytest.mark.parametrize(
    ("model", "options", "names"),
    [
        ("resnet50", {}, ("resnet50", "resnet50")),
        ("resnet50", {"resnet_version": "v1"}, (None, None)),
        ("resnet50", {"norm_eps": 1e-4}, (None, None)),
        ("resnet50", {"conv_padding": "same"}, (None, None)),
        ("resnet50", {"input_image_padding": True}, (None, None)),
        ("resnet50", {"shortcut_type": "C"}, (None, None)),
        ("resnet50", {"norm_type": "group"}, (None, "resnet50_gn")),
        ("resnet50", {"norm_type": "group", "norm_num_groups": 8}, (None, None)),
        ("resnet50", {"norm_type": "group", "enable_fast_groupnorm": True}, (None, None)),
        ("resnet50", {"norm_type": "none"}, (None, None)),
        ("resnet18", {"stem": "small"}, (None, None)),
        ("resnet20", {}, (None, None)),
        ("resnet26", {}, (None, "resnet26")),
        ("resnext50", {}, ("resnext50_32x4d", "resnext50_32x4d")),
        ("resnext101", {}, (None, "resnext101_32x4d")),
        ("resnext101", {"group_dim": 8}, ("resnext101_32x8d", "resnext101_32x8d")),
        ("resnext101", {"cardinality": 64}, ("resnext101_64x4d", "resnext101_64x4d")),
        ("mobilenet", {}, ("mobilenet_v2", "mobilenetv2_100")),
        ("mobilenet-v3-large", {}, (None, None)),
        ("mobilenet-v3-large-published", {}, (None, "mobilenetv3_large_100")),
        ("mobilenet-v3-small-published", {"norm_eps": 0.001}, ("mobilenet_v3_small", None)),
        ("mobilenet-v3-small-published", TF, (None, "tf_mobilenetv3_small_100")),
        ("efficientnet-b0", {}, ("efficientnet_b0", "efficientnet_b0")),
        ("efficientnet-b0", TF, (None, "tf_efficientnet_b0")),
        ("efficientnet-b0", {"group_dim": 16}, (None, None)),
        ("efficientnet-b0", {"use_relu": True}, (None, None)),
        ("efficientnet-b0", {"proxy_norm": True, "norm_type": "group"}, (None, None)),
        ("efficientnet-b5", {}, (None, "efficientnet_b5")),
        ("efficientnet-b7", {"norm_eps": 0.001}, ("efficientnet_b7", None)),
        ("squeezenet", {}, (None, None)),
    ],
)
def test_a_library_has_a_network_only_if_all_its_layers_are_the_same(
    model: str, options: dict[str, Any], names: tuple[str | None, str | None]
) -> None:
    assert names_of(config_of(model, **options)) == names


def test_options_without_an_effect_on_the_outputs_do_not_matter() -> None:
    training = {"weight_init": "tensorflow", "batchnorm_momentum": 0.3, "stable_norm": False}
    config = config_of("resnet50", zero_init_last_norm=False, norm_num_groups=4, **training)
    dropout = config_of("efficientnet-b0", dropout_rate=0.0, block_survival_prob=1.0)

    assert names_of(config) == ("resnet50", "resnet50")
    assert names_of(dropout) == ("efficientnet_b0", "efficientnet_b0")


@pytest.mark.parametrize(
    ("model", "options", "library", "facts"),
    [
        (
            "resnet50",
            {"resnet_version": "v1"},
            TORCHVISION,
            ["torchvision's resnet50", "--resnet-version v1.5, not v1;", "use --naming convoy"],
        ),
        ("efficientnet-b0", TF, TORCHVISION, ["--norm-eps 1e-05", "tf_efficientnet_b0"]),
        ("efficientnet-b5", {}, TORCHVISION, ["--norm-eps 0.001, not 1e-05", "--naming timm"]),
        ("resnet50", {"input_image_padding": True}, TIMM, ["no --input-image-padding;"]),
        ("mobilenet-v3-large", {}, TIMM, ["only of mobilenet-v3-large-published"]),
        ("resnet20", {}, TORCHVISION, ["no network with the layers of resnet20"]),
    ],
)
def test_a_refusal_names_the_difference_and_the_naming_to_use(
    model: str, options: dict[str, Any], library: str, facts: list[str]
) -> None:
    message = explain_difference(config_of(model, **options), 10, library)

    assert [fact for fact in facts if fact not in message] == []
    assert message.endswith("--naming convoy")


def test_every_network_differs_from_itself_in_no_option() -> None:
    for network in LIBRARY_NETWORKS:
        if network.name not in ("efficientnet_b6", "efficientnet_b7", "resnet152"):  # large
            config = config_of(network.model, **network.options)

            assert different_options(config, network) == {}
            assert same_network(config, 10, network.library) == network


def candidates(model: str, library: str, **options: Any) -> list[LibraryNetwork]:
    return find_candidates(config_of(model, **options), 1000, [library])


def test_weights_of_timm_can_come_from_two_networks_with_the_same_names() -> None:
    found = candidates("efficientnet-b0", TIMM)

    assert [network.name for network in found] == ["efficientnet_b0", "tf_efficientnet_b0"]
    assert "--conv-padding and --norm-eps" in ambiguity("x.pth", found)
    assert choose_origin("model.safetensors", found, None) is None
    for source in ("tf_efficientnet_b0_ns-c0e6a31c.pth", "hf:timm/tf_efficientnet_b0.ns_jft_in1k"):
        assert choose_origin(source, found, None) == found[1]
    for source in ("efficientnet_b0_ra-3dd342df.pth", "hf:timm/efficientnet_b0.ra_in1k"):
        assert choose_origin(source, found, None) == found[0]
    assert choose_origin("tf_efficientnet_b0.pth", found, "efficientnet_b0") == found[0]


def test_the_name_of_another_network_is_no_origin() -> None:
    found = candidates("efficientnet-b1", TIMM)

    assert name_in("tf_efficientnet_b10.pth", found) is None
    assert name_in("tf_efficientnet_b0.pth", found) is None


def test_weights_of_torchvision_come_from_one_network() -> None:
    (large,) = candidates("efficientnet-b5", TORCHVISION)
    (wide,) = candidates("resnext101", TORCHVISION, group_dim=8)

    assert (large.name, large.options) == ("efficientnet_b5", {"norm_eps": 0.001})
    assert wide.name == "resnext101_32x8d"
    assert candidates("resnext101", TORCHVISION) == []
    assert candidates("resnet20", TORCHVISION) == []
