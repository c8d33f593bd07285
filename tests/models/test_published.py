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


def test_every_network_has_a_published_count() -> None:
    assert {item.model for item in PUBLISHED} == set(MODELS)


def test_group_dim_16_is_refused_where_it_does_not_fit_with_a_fix() -> None:
    options = {"group_dim": 16, "expand_ratio": 4}
    with pytest.raises(ConfigError) as refused:
        planned("efficientnet-b6", **options)

    assert "56 channels of blocks/0/0/conv_dw into 3 equal groups; try 8" in str(refused.value)
    assert planned("efficientnet-b6", **options | {"group_dim": 8}).parameters == 34_539_912
