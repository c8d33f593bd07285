"""EfficientNet: widths and depths of every size, strides, gates, dropout, proxy norm, groups."""

from typing import Any

import pytest
from support.model_families import Small

from convoy.errors import ConfigError
from convoy.models.layers import (
    ActivationSpec,
    ConvSpec,
    DropoutSpec,
    DropPathSpec,
    LayerPlan,
    NormSpec,
    OpSpec,
    ProxyActivationSpec,
    ProxySqueezeExciteSpec,
    Route,
)

# Widths of the stem, the seven groups and the head convolution; repeats of the groups.
SIZES = {
    "cifar": ((16, 8, 16, 24, 40, 56, 96, 160, 640), (1, 2, 2, 3, 3, 4, 1)),
    "b0": ((32, 16, 24, 40, 80, 112, 192, 320, 1280), (1, 2, 2, 3, 3, 4, 1)),
    "b1": ((32, 16, 24, 40, 80, 112, 192, 320, 1280), (2, 3, 3, 4, 4, 5, 2)),
    "b2": ((32, 16, 24, 48, 88, 120, 208, 352, 1408), (2, 3, 3, 4, 4, 5, 2)),
    "b3": ((40, 24, 32, 48, 96, 136, 232, 384, 1536), (2, 3, 3, 5, 5, 6, 2)),
    "b4": ((48, 24, 32, 56, 112, 160, 272, 448, 1792), (2, 4, 4, 6, 6, 8, 2)),
    "b5": ((48, 24, 40, 64, 128, 176, 304, 512, 2048), (3, 5, 5, 7, 7, 9, 3)),
    "b6": ((56, 32, 40, 72, 144, 200, 344, 576, 2304), (3, 6, 6, 8, 8, 11, 3)),
    "b7": ((64, 32, 48, 80, 160, 224, 384, 640, 2560), (4, 7, 7, 10, 10, 13, 4)),
}
DROPOUT = {"b0": 0.2, "b1": 0.2, "b2": 0.3, "b3": 0.3, "b4": 0.4, "b5": 0.4, "b6": 0.5, "b7": 0.5}


def layers(size: str = "b0", **options: Any) -> tuple[LayerPlan, ...]:
    return Small({"model": f"efficientnet-{size}", **options}, 224).plan.layers


def specs_of_type(kind: type[OpSpec], planned: tuple[LayerPlan, ...]) -> dict[str, Any]:
    return {item.name: item.operation for item in planned if isinstance(item.operation, kind)}


@pytest.mark.parametrize("size", SIZES)
def test_each_size_has_its_widths_and_depths(size: str):
    widths, repeats = SIZES[size]
    convs = specs_of_type(ConvSpec, layers(size))
    projections = [
        item for name, item in convs.items() if name.endswith(("/conv_pwl", "0/0/conv_pw"))
    ]
    blocks = {"/".join(name.split("/")[:3]) for name in convs if name.startswith("blocks/")}
    stem_and_head = [convs["conv_stem"].outputs, convs["conv_head"].outputs]

    assert stem_and_head == [widths[0], widths[-1]]
    assert {item.outputs for item in projections} == set(widths[1:-1])
    assert blocks == {f"blocks/{g}/{i}" for g, count in enumerate(repeats) for i in range(count)}


@pytest.mark.parametrize(
    ("size", "strided"),
    [
        ("b0", ["conv_stem", *(f"blocks/{group}/0/conv_dw" for group in (1, 2, 3, 5))]),
        ("b5", ["conv_stem", *(f"blocks/{group}/0/conv_dw" for group in (1, 2, 3, 5))]),
        ("cifar", [f"blocks/{group}/0/conv_dw" for group in (2, 3, 5)]),
    ],
)
def test_the_image_is_halved_in_the_expected_stages(size: str, strided: list[str]):
    convs = specs_of_type(ConvSpec, layers(size))

    assert [name for name, conv in convs.items() if conv.stride == 2] == strided
    assert {conv.stride for conv in convs.values()} == {1, 2}


def test_each_group_has_its_kernel_size():
    convs = specs_of_type(ConvSpec, layers())
    kernels = [convs[f"blocks/{group}/0/conv_dw"].kernel for group in range(7)]

    assert (convs["conv_stem"].kernel, kernels) == (3, [3, 3, 5, 3, 5, 5, 3])


def test_the_layers_of_an_expanding_block():
    block = [
        (layer.name[11:], layer.route) for layer in layers() if layer.name.startswith("blocks/1/1/")
    ]

    assert block == [
        ("conv_pw", Route.FORK),
        ("bn1", Route.MAIN),
        ("act1", Route.MAIN),
        ("conv_dw", Route.MAIN),
        ("bn2", Route.MAIN),
        ("act2", Route.MAIN),
        ("se/pool", Route.BRANCH),
        ("se/conv_reduce", Route.SIDE),
        ("se/act1", Route.SIDE),
        ("se/conv_expand", Route.SIDE),
        ("se/gate", Route.SIDE),
        ("se/mul", Route.JOIN),
        ("conv_pwl", Route.MAIN),
        ("bn3", Route.MAIN),
        ("drop_path", Route.MAIN),
        ("add", Route.JOIN),
    ]


def test_a_block_without_expansion_has_other_names():
    names = [layer.name for layer in layers() if layer.name.startswith("blocks/0/0/")]
    gate = ["se/pool", "se/conv_reduce", "se/act1", "se/conv_expand", "se/gate", "se/mul"]
    expected = ["conv_dw", "bn1", "act1", *gate, "conv_pw", "bn2"]

    assert [name.removeprefix("blocks/0/0/") for name in names] == expected


def test_squeeze_excite_reduces_to_a_quarter_of_the_block_input():
    convs = specs_of_type(ConvSpec, layers("cifar"))
    inner = {name: item.outputs for name, item in convs.items() if name.endswith("conv_reduce")}

    assert inner["blocks/0/0/se/conv_reduce"] == 4
    assert inner["blocks/1/0/se/conv_reduce"] == 2  # of the block input and not of the group output
    assert inner["blocks/4/1/se/conv_reduce"] == 14
    assert all(convs[name].bias for name in inner)


def test_squeeze_excite_can_be_disabled():
    gated, plain = layers(), layers(squeeze_excite=False)

    assert [item for item in gated if "/se/" not in item.name] == list(plain)


def test_the_drop_path_rate_grows_with_depth():
    drops = specs_of_type(DropPathSpec, layers())

    assert drops["blocks/1/1/drop_path"].rate == pytest.approx(0.2 * 2 / 16)
    assert drops["blocks/5/3/drop_path"].rate == pytest.approx(0.2 * 14 / 16)
    assert len(drops) == 9  # the blocks with a shortcut


def test_the_survival_probability_sets_the_drop_path_rate():
    drops = specs_of_type(DropPathSpec, layers("b1", block_survival_prob=0.5))

    assert drops["blocks/0/1/drop_path"].rate == pytest.approx(0.5 * 1 / 23)
    assert drops["blocks/6/1/drop_path"].rate == pytest.approx(0.5 * 22 / 23)
    assert specs_of_type(DropPathSpec, layers(block_survival_prob=1.0)) == {}


@pytest.mark.parametrize(("size", "rate"), DROPOUT.items())
def test_each_size_has_its_default_dropout(size: str, rate: float):
    assert specs_of_type(DropoutSpec, layers(size)) == {"dropout": DropoutSpec(rate)}
    assert specs_of_type(DropoutSpec, layers(size, dropout_rate=0.9)) == {
        "dropout": DropoutSpec(0.9)
    }
    assert specs_of_type(DropoutSpec, layers(size, dropout_rate=0.0)) == {}


def test_the_small_model_has_no_dropout():
    assert specs_of_type(DropoutSpec, layers("cifar")) == {}


@pytest.mark.parametrize(
    ("divisor", "coefficient", "stem"),
    [
        (8, 1.0, 32),
        (8, 1.1, 32),  # 35.2
        (8, 1.125, 40),  # 36: halves are rounded up
        (8, 0.1, 8),  # at least the divisor
        (16, 1.2, 48),  # 38.4 → 32 would lose more than a tenth
        (1, 1.1, 35),
        (64, 1.0, 64),
    ],
)
def test_widths_are_rounded_to_the_divisor(divisor: int, coefficient: float, stem: int):
    options = {"depth_divisor": divisor, "width_coefficient": coefficient}

    assert specs_of_type(ConvSpec, layers(**options))["conv_stem"].outputs == stem


def test_depths_are_rounded_up():
    names = [layer.name for layer in layers(depth_coefficient=1.01)]

    assert "blocks/0/1/conv_dw" in names and "blocks/5/4/conv_dw" in names
    assert "blocks/0/2/conv_dw" not in names and "blocks/5/5/conv_dw" not in names


def test_the_head_convolution_is_scaled_or_omitted():
    assert specs_of_type(ConvSpec, layers("b4", top_width=640))["conv_head"].outputs == 896
    no_head = layers("b4", top_width=0)

    assert [item.name for item in no_head][-4:] == [
        "blocks/6/1/add",
        "global_pool",
        "dropout",
        "classifier",
    ]


def test_relu_replaces_swish_but_not_the_gate():
    swish = [item.kind for item in specs_of_type(ActivationSpec, layers()).values()]
    relu = [item.kind for item in specs_of_type(ActivationSpec, layers(use_relu=True)).values()]

    assert set(swish) == {"swish", "sigmoid"}
    assert relu == [kind.replace("swish", "relu") for kind in swish]


@pytest.mark.parametrize(("dim", "groups"), [(1, 96), (8, 12), (16, 6), (48, 2), (96, 1), (999, 1)])
def test_depthwise_convolutions_may_have_wider_groups(dim: int, groups: int):
    convs = specs_of_type(ConvSpec, layers(group_dim=dim))

    assert (convs["blocks/1/0/conv_dw"].inputs, convs["blocks/1/0/conv_dw"].groups) == (96, groups)
    assert {item.groups for name, item in convs.items() if not name.endswith("_dw")} == {1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"size": "b0", "group_dim": 5},
            "the 32 channels of blocks/0/0/conv_dw into 6 equal groups; try 4",
        ),
        (
            {"size": "b4", "group_dim": 20},
            "the 144 channels of blocks/1/0/conv_dw into 7 equal groups; try 16",
        ),
    ],
)
def test_groups_that_do_not_divide_the_channels_are_refused_with_a_fix(
    options: dict[str, Any], message: str
):
    with pytest.raises(ConfigError) as refused:
        layers(**options)

    assert str(refused.value).startswith(f"--group-dim {options['group_dim']} ")
    assert str(refused.value).endswith(message)
    assert layers(**{**options, "group_dim": int(message.split()[-1])})


def test_an_expand_ratio_of_one_removes_the_expansion():
    names = [layer.name for layer in layers(expand_ratio=1)]

    assert not any(name.endswith("conv_pwl") for name in names)
    assert "blocks/3/1/conv_pw" in names and "blocks/3/1/bn2" in names


def test_with_proxy_norm_the_activation_has_scale_and_offset():
    norms = specs_of_type(NormSpec, layers(proxy_norm=True))
    last = {name for name in norms if name.endswith("/bn3") or name == "blocks/0/0/bn2"}

    assert len(last) == 16
    assert {(norms[name].scale, norms[name].offset) for name in last} == {(True, False)}
    others = {(norm.scale, norm.offset) for name, norm in norms.items() if name not in last}
    assert others == {(False, False)}


def test_with_proxy_norm_the_scale_follows_the_gate_and_is_omitted_in_the_head():
    planned = layers(proxy_norm=True, proxy_epsilon=0.5, proxy_recompute=False)
    activations, gates = (
        specs_of_type(ProxyActivationSpec, planned),
        specs_of_type(ProxySqueezeExciteSpec, planned),
    )

    assert specs_of_type(ActivationSpec, planned) == {}
    assert {name for name, item in activations.items() if not item.scaled} == {"act2"}
    assert gates.keys() == {
        f"{name.removesuffix('/conv_dw')}/se"
        for name in specs_of_type(ConvSpec, planned)
        if "_dw" in name
    }
    proxies = [*activations.values(), *(gate.proxy for gate in gates.values())]
    assert {(proxy.kind, proxy.eps, proxy.recompute) for proxy in proxies} == {
        ("swish", 0.5, False)
    }


def test_with_proxy_norm_and_no_gates_all_activations_but_the_last_are_scaled():
    planned = layers(proxy_norm=True, squeeze_excite=False, use_relu=True)
    activations = specs_of_type(ProxyActivationSpec, planned)

    assert {name for name, item in activations.items() if not item.scaled} == {"act2"}
    assert {
        (activation.kind, activation.eps, activation.recompute)
        for activation in activations.values()
    } == {("relu", 0.03, True)}


def test_without_norms_convolutions_have_biases():
    planned = layers(norm_type="none")

    assert specs_of_type(NormSpec, planned) == {}
    assert all(conv.bias for conv in specs_of_type(ConvSpec, planned).values())
