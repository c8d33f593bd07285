"""The names of parameters as planned: those of the live network, in its order."""

import pytest
import torch
from families import ALL

from convoy.plan.parameters import parameter_names
from convoy.run.network import build_network, whole


@pytest.mark.parametrize("name", ALL)
def test_planned_names_are_those_of_the_live_network(name: str) -> None:
    plan = ALL[name].plan
    built = build_network(plan, [whole(plan)], 0, torch.device("cpu"))

    assert parameter_names(plan.layers) == list(built.slice.named_weights())
