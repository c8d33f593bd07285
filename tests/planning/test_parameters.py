"""The planned parameter names are those of the network, in order."""

import pytest
import torch
from support.model_families import ALL

from convoy.planning.parameters import parameter_names
from convoy.run.network import build_network


@pytest.mark.parametrize("name", ALL)
def test_planned_parameter_names_match_the_network(name: str) -> None:
    plan = ALL[name].plan
    built = build_network(plan, 0, torch.device("cpu"))

    assert parameter_names(plan.layers) == list(built.slice.named_weights())
