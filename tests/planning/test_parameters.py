"""The names of parameters as planned: those of the live network, in its order."""

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
