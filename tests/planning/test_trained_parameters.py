"""Planned names and sizes of parameters, and the number of trained ones."""

from typing import Any

import pytest
import torch

from convoy.config.schema import build_config
from convoy.errors import ConfigError
from convoy.planning.parameters import parameters_of
from convoy.planning.plan import RunPlan, plan_run
from convoy.planning.render import plan_as_text
from convoy.run.network import build_network, searchable_names

FAMILIES: list[dict[str, Any]] = [
    {"model": "resnet8"},
    {"model": "resnet50", "norm_type": "group"},
    {"model": "resnext50"},
    {"model": "resnet8", "norm_type": "none"},
    {"model": "efficientnet-cifar"},
    {
        "model": "efficientnet-cifar",
        "proxy_norm": True,
        "norm_type": "group",
        "norm_num_groups": 4,
    },
    {"model": "mobilenet"},
    {"model": "squeezenet"},
]


def plan(*filters: str, **options: Any) -> RunPlan:
    return plan_run(build_config({"model": "resnet8", "variable_filter": filters, **options}))


@pytest.mark.parametrize("options", FAMILIES, ids=lambda item: " ".join(map(str, item.values())))
def test_every_parameter_has_its_planned_name_and_size(options: dict[str, Any]) -> None:
    network = plan_run(build_config(options)).network
    built = build_network(network, 0, torch.device("meta")).slice
    planned = [item for layer in network.layers for item in parameters_of(layer)]

    assert {item.name: item.searchable_name for item in planned} == searchable_names(built)
    assert {item.name: item.elements for item in planned} == {
        name: weight.numel() for name, weight in built.named_weights().items()
    }


def test_without_a_filter_everything_that_is_not_frozen_is_trained() -> None:
    assert sum(plan().trained_parameters) == 75_290
    assert sum(plan(fine_tune_first_trainable_layer="fc").trained_parameters) == 650
    assert plan().first_trained_layer == 0
    assert (
        plan(fine_tune_first_trainable_layer="fc").first_trained_layer
        == plan("fc").first_trained_layer
    )


def test_a_filter_selects_matching_weights() -> None:
    assert sum(plan("fc").trained_parameters) == 650
    assert sum(plan("fc.bias").trained_parameters) == 10
    assert sum(plan("gamma").trained_parameters) == sum(plan("beta").trained_parameters) > 0
    assert sum(plan("gamma", "beta", "conv", "downsample", "fc").trained_parameters) == 75_290


def test_gradients_are_needed_from_the_first_trained_layer() -> None:
    run = plan("layer2.0.conv2", "fc")

    assert run.network.layers[run.first_trained_layer].name == "layer2/0/conv2"
    assert (run.num_frozen, plan("conv1").first_trained_layer) == (0, 0)


def test_frozen_parameters_are_not_trained_even_if_the_filter_matches() -> None:
    run = plan("conv1", "fc", fine_tune_first_trainable_layer="fc")

    assert (sum(run.trained_parameters), run.network.layers[run.first_trained_layer].name) == (
        650,
        "fc",
    )


def test_only_trained_weights_have_gradients_and_state() -> None:
    (stage,) = plan("fc").memory

    assert stage.optimizer_state == 4 * 650
    assert stage.gradients < plan().memory[0].gradients / 50


def test_a_filter_that_matches_no_weight_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--variable-filter nothing here leaves nothing to train"
    ):
        plan("nothing", "here")


def test_the_plan_shows_the_number_of_trained_parameters() -> None:
    (line,) = [line for line in plan_as_text(plan("fc"), 100) if line.startswith("trained")]

    assert line == "trained        650 of 75,290 parameters (--variable-filter)"
    assert not any(line.startswith("trained") for line in plan_as_text(plan(), 100))
