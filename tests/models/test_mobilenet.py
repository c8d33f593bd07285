"""MobileNet v2 and v3: the names of torchvision and timm, gates, strides, dropout, norms."""

from typing import Any

import pytest
from support.model_families import Small

from convoy.models.layers import (
    ActivationSpec,
    ConvSpec,
    DropoutSpec,
    LayerPlan,
    LinearSpec,
    NormSpec,
    OpSpec,
    Route,
)

V3 = ["mobilenet-v3-large", "mobilenet-v3-small"]


def layers(model: str, **options: Any) -> tuple[LayerPlan, ...]:
    return Small({"model": model, **options}, 224).plan.layers


def specs_of_type(kind: type[OpSpec], planned: tuple[LayerPlan, ...]) -> dict[str, Any]:
    return {item.name: item.operation for item in planned if isinstance(item.operation, kind)}


def test_v2_has_the_names_of_torchvision():
    names = [layer.name for layer in layers("mobilenet")]

    assert names[:8] == [
        *("features/0/0", "features/0/1", "features/0/2"),
        *("features/1/conv/0/0", "features/1/conv/0/1", "features/1/conv/0/2"),
        *("features/1/conv/1", "features/1/conv/2"),
    ]
    assert [name.removeprefix("features/3/") for name in names if "/3/" in name[:11]] == [
        *("conv/0/0", "conv/0/1", "conv/0/2", "conv/1/0", "conv/1/1", "conv/1/2"),
        *("conv/2", "conv/3", "add"),
    ]
    assert names[-6:] == [
        *("features/18/0", "features/18/1", "features/18/2"),
        *("avgpool", "classifier/0", "classifier/1"),
    ]


def test_v2_has_shortcuts_where_the_shape_is_preserved():
    planned = layers("mobilenet")
    forked = [item.name.split("/")[1] for item in planned if item.route is Route.FORK]
    joined = [item.name.split("/")[1] for item in planned if item.route is Route.JOIN]

    assert forked == joined == ["3", "5", "6", "8", "9", "10", "12", "13", "15", "16"]


def test_v2_halves_the_image_five_times():
    convs = specs_of_type(ConvSpec, layers("mobilenet"))
    strided = [name for name, conv in convs.items() if conv.stride == 2]

    assert strided == [
        "features/0/0",
        *(f"features/{block}/conv/1/0" for block in (2, 4, 7, 14)),
    ]


def test_v2_uses_relu6_activations():
    assert {item.kind for item in specs_of_type(ActivationSpec, layers("mobilenet")).values()} == {
        "relu6"
    }


@pytest.mark.parametrize(
    ("model", "blocks"),
    [("mobilenet-v3-large", "1/0 2/0 3/0 5/0"), ("mobilenet-v3-small", "0/0 1/0 2/0 4/0")],
)
def test_v3_halves_the_image_five_times(model: str, blocks: str):
    convs = specs_of_type(ConvSpec, layers(model))

    assert [name for name, conv in convs.items() if conv.stride == 2] == [
        "conv_stem",
        *(f"blocks/{block}/conv_dw" for block in blocks.split()),
    ]


@pytest.mark.parametrize(
    ("model", "gated"),
    [
        ("mobilenet-v3-large", "2/0 2/1 2/2 4/0 4/1 5/0 5/1 5/2"),
        ("mobilenet-v3-small", "0/0 2/0 2/1 2/2 3/0 3/1 4/0 4/1 4/2"),
    ],
)
def test_v3_gates_use_hard_sigmoid(model: str, gated: str):
    activations = specs_of_type(ActivationSpec, layers(model))
    gates = [name for name in activations if name.endswith("/se/gate")]

    assert [name.removeprefix("blocks/").removesuffix("/se/gate") for name in gates] == (
        gated.split()
    )
    assert {activations[name].kind for name in gates} == {"hard_sigmoid"}
    assert {item.kind for name, item in activations.items() if name.endswith("se/act1")} == {"relu"}


@pytest.mark.parametrize(
    ("model", "end"),
    [("mobilenet-v3-large", "blocks/6/0"), ("mobilenet-v3-small", "blocks/5/0")],
)
def test_v3_has_a_head_after_pooling(model: str, end: str):
    names = [layer.name for layer in layers(model)]

    assert names[-9:] == [
        *(f"{end}/conv", f"{end}/bn1", f"{end}/act1"),
        *("global_pool", "conv_head", "act2", "flatten", "dropout", "classifier"),
    ]


@pytest.mark.parametrize(
    ("model", "head", "bias"),
    [
        ("mobilenet-v3-large", 1280, False),
        ("mobilenet-v3-small", 1280, False),
        ("mobilenet-v3-large-published", 1280, True),
        ("mobilenet-v3-small-published", 1024, True),
    ],
)
def test_the_published_head_has_a_bias_and_another_width(model: str, head: int, bias: bool):
    planned = layers(model)
    conv, linear = (
        specs_of_type(ConvSpec, planned)["conv_head"],
        specs_of_type(LinearSpec, planned)["classifier"],
    )

    assert (conv.outputs, conv.bias, linear.inputs) == (head, bias, head)


@pytest.mark.parametrize(
    ("model", "name"),
    [("mobilenet", "classifier/0"), *((model, "dropout") for model in V3)],
)
def test_the_default_dropout_before_the_classifier_is_a_fifth(model: str, name: str):
    assert specs_of_type(DropoutSpec, layers(model)) == {name: DropoutSpec(0.2)}
    assert specs_of_type(DropoutSpec, layers(model, dropout_rate=0.7)) == {name: DropoutSpec(0.7)}
    assert specs_of_type(DropoutSpec, layers(model, dropout_rate=0.0)) == {}


@pytest.mark.parametrize("model", ["mobilenet", *V3])
def test_every_norm_may_be_a_group_norm_or_none(model: str):
    batch = layers(model)
    group = layers(model, norm_type="group", norm_num_groups=4)
    no_norm = layers(model, norm_type="none")

    assert [item.name for item in group] == [item.name for item in batch]
    assert {item.kind for item in specs_of_type(NormSpec, group).values()} == {"group"}
    assert specs_of_type(NormSpec, no_norm) == {}
    assert all(
        conv.bias for name, conv in specs_of_type(ConvSpec, no_norm).items() if name != "conv_head"
    )
