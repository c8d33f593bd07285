"""ResNeXt: inner widths, groups, and combinations that are refused."""

from typing import Any

import pytest
from support.model_families import Small

from convoy.errors import ConfigError
from convoy.models.layers import ConvSpec


def convs(model: str, **options: Any) -> dict[str, ConvSpec]:
    layers = Small({"model": model, **options}, 64).plan.layers
    return {
        layer.name: layer.operation for layer in layers if isinstance(layer.operation, ConvSpec)
    }


@pytest.mark.parametrize(
    ("model", "options", "inner", "cardinality"),
    [
        ("resnext50", {}, (128, 256, 512, 1024), 32),
        ("resnext101", {"group_dim": 8}, (256, 512, 1024, 2048), 32),
        ("resnext101", {"cardinality": 64}, (256, 512, 1024, 2048), 64),
        ("resnext50", {"cardinality": 1, "group_dim": 64}, (64, 128, 256, 512), 1),
        ("resnext29", {}, (128, 256, 512), 32),
        ("resnext29", {"widenet": True}, (128, 256, 512), 32),
        ("resnext11", {"cardinality": 8, "group_dim": 2}, (16, 32, 64), 8),
    ],
)
def test_the_inner_widths_follow_cardinality_and_group(
    model: str, options: dict[str, Any], inner: tuple[int, ...], cardinality: int
):
    found = convs(model, **options)
    middle = [found[f"layer{group}/0/conv2"] for group in range(1, len(inner) + 1)]

    assert tuple(conv.inputs for conv in middle) == inner
    assert tuple(conv.outputs for conv in middle) == inner
    assert {conv.groups for conv in middle} == {cardinality}
    assert {conv.groups for name, conv in found.items() if not name.endswith("conv2")} == {1}


@pytest.mark.parametrize(
    ("model", "options", "outputs"),
    [
        ("resnext50", {}, (256, 512, 1024, 2048)),
        ("resnext11", {}, (64, 128, 256)),
        ("resnext11", {"widenet": True}, (256, 512, 1024)),
        ("resnext50", {"widenet": True}, (256, 512, 1024, 2048)),
    ],
)
def test_block_outputs_are_four_times_the_base_width(
    model: str, options: dict[str, Any], outputs: tuple[int, ...]
):
    found = convs(model, **options)
    output = [found[f"layer{group}/0/conv3"].outputs for group in range(1, len(outputs) + 1)]

    assert tuple(output) == outputs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"model": "resnext50", "cardinality": 10},
            "--cardinality 10 × --group-dim 4 = 40 is not a multiple of the 64 stem channels; "
            "--group-dim 64 always is",
        ),
        (
            {"model": "resnext11", "group_dim": 3, "cardinality": 7},
            "--cardinality 7 × --group-dim 3 = 21 is not a multiple of the 16 stem channels; "
            "--group-dim 16 always is",
        ),
    ],
)
def test_a_fractional_width_is_refused_with_a_fix(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as refused:
        Small(options, 64).plan  # noqa: B018
    width = int(message.split("the ")[1].split()[0])

    assert str(refused.value) == message
    assert Small({**options, "group_dim": width}, 64).plan


@pytest.mark.parametrize("model", ["resnet50", "resnet8", "resnet11"])
def test_cardinality_does_not_affect_a_resnet(model: str):
    options = {"cardinality": 7, "group_dim": 3, "widenet": True}

    assert convs(model, **options) == convs(model)
