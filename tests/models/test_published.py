"""Every network has its published number of parameters, planned and built."""

import pytest
import torch
from pages.published import PUBLISHED, Published

from convoy.config.schema import build_config
from convoy.config.sections.network import MODELS
from convoy.errors import ConfigError
from convoy.models.network import NetworkPlan, plan_network
from convoy.run.network import build_network


def planned(model: str, **options: object) -> NetworkPlan:
    return plan_network(build_config({"model": model, "data": "generated", **options}))


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda item: f"{item.model} {item.parameters}")
def test_a_network_has_the_published_parameters(published: Published) -> None:
    plan = planned(published.model, **dict(published.options))
    network = build_network(plan, 0, torch.device("meta"))
    built = sum(weight.numel() for weight in network.slice.named_weights().values())

    assert (plan.parameters, built) == (published.parameters, published.parameters)


# Billions of multiply-adds in the metadata of torchvision's weights, at our image sizes.
TORCHVISION_GIGA_MACS = [
    ("resnet18", {}, 1.814),
    ("resnet34", {}, 3.664),
    ("resnet50", {}, 4.089),
    ("resnet101", {}, 7.801),
    ("resnet152", {}, 11.514),
    ("resnext50", {}, 4.23),
    ("resnext101", {"group_dim": 8}, 16.414),
    ("resnext101", {"cardinality": 64}, 15.46),
    ("mobilenet", {}, 0.301),
    ("mobilenet-v3-large-published", {}, 0.217),
    ("mobilenet-v3-small-published", {}, 0.057),
    ("efficientnet-b0", {}, 0.386),
    ("efficientnet-b1", {}, 0.687),
    ("efficientnet-b3", {}, 1.827),
    ("efficientnet-b4", {}, 4.394),
    ("efficientnet-b5", {}, 10.266),
    ("efficientnet-b6", {}, 19.068),
    ("efficientnet-b7", {}, 37.746),
]


def test_multiply_adds_are_those_that_torchvision_publishes() -> None:
    counted = [
        round(planned(model, **options).macs / 1e9, 3)
        for model, options, _ in TORCHVISION_GIGA_MACS
    ]

    assert counted == [published for _, _, published in TORCHVISION_GIGA_MACS]


def test_every_network_has_a_published_count() -> None:
    assert {item.model for item in PUBLISHED} == set(MODELS)


def test_group_dim_16_is_refused_where_it_does_not_fit_with_a_fix() -> None:
    options = {"group_dim": 16, "expand_ratio": 4}
    with pytest.raises(ConfigError) as refused:
        planned("efficientnet-b6", **options)

    assert "56 channels of blocks/0/0/conv_dw into 3 equal groups; try 8" in str(refused.value)
    assert planned("efficientnet-b6", **options | {"group_dim": 8}).parameters == 34_539_912
