"""Frozen layers: names of the first trained layer, and names that are refused."""

from typing import Any

import pytest

from convoy.config.schema import build_config
from convoy.errors import ConfigError
from convoy.planning.plan import RunPlan, plan_run
from convoy.planning.render import plan_as_text


def plan(first: str | None, **values: Any) -> RunPlan:
    options = {"model": "resnet8", "fine_tune_first_trainable_layer": first}
    return plan_run(build_config(options | values))


def first_trained(first: str, **values: Any) -> str:
    actual = plan(first, **values)
    return actual.network.layers[actual.num_frozen].name


def test_by_default_every_layer_is_trained() -> None:
    assert (plan(None).num_frozen, plan(None).frozen_layers) == (0, ())


def test_the_first_layer_freezes_nothing() -> None:
    assert plan("conv1").num_frozen == 0


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("layer2/0/bn1", "layer2/0/bn1"),
        ("layer2", "layer2/0/conv1"),
        ("layer3/0", "layer3/0/conv1"),
        ("b2/0", "layer2/0/conv1"),
        ("stage3/unit1", "layer3/0/conv1"),
        ("fc", "fc"),
    ],
)
def test_a_layer_a_group_or_an_alias_selects_the_first_trained_layer(name: str, layer: str) -> None:
    assert first_trained(name) == layer


@pytest.mark.parametrize(
    ("name", "layer"),
    [("relu", "layer1/0/conv1"), ("layer1/0/add", "layer2/0/conv1"), ("avgpool", "fc")],
)
def test_a_layer_without_weights_selects_the_next_layer_with_weights(name: str, layer: str) -> None:
    assert first_trained(name) == layer


def test_all_earlier_layers_are_frozen() -> None:
    assert [layer.name for layer in plan("layer1").frozen_layers] == ["conv1", "bn1", "relu"]


def test_an_unknown_layer_is_refused_with_near_names() -> None:
    with pytest.raises(ConfigError) as error:
        plan("layer2/0/conv9")

    message = str(error.value)
    assert message.startswith("--fine-tune-first-trainable-layer 'layer2/0/conv9' is not a layer")
    assert "did you mean layer2/0/conv" in message


def test_a_layer_after_all_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'avgpool' leaves nothing to train: .* is conv10$"):
        plan("avgpool", model="squeezenet", data="generated", image_size=64)


def test_gradients_and_state_are_planned_for_trained_parameters_only() -> None:
    head_only, everything = plan("fc").memory[0], plan(None).memory[0]
    head = 4 * (64 * 10 + 10)

    assert head_only.weights == everything.weights
    assert head_only.optimizer_state == head
    assert head_only.gradients % head == 0 and head_only.gradients < everything.gradients


def test_the_plan_shows_frozen_layers_only_if_there_are_any() -> None:
    lines = plan_as_text(plan("fc"), 100)

    assert [line for line in lines if line.startswith("frozen")] == [
        "frozen         27 layers (74,640 of 75,290 parameters), training starts at fc"
    ]
    assert not any(line.startswith("frozen") for line in plan_as_text(plan(None), 100))
