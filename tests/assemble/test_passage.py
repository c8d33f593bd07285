"""What the stages of a process send to each other, and what they need not."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from convoy.assemble.passage import _borders
from convoy.config.schema import build_config
from convoy.plan.plan import plan_run

SPLITS = ("layer1", "layer2/0/conv2", "fc")


def ways(**asked: Any) -> list[tuple[bool, bool]]:
    """Of each stage: whether it answers with a gradient, and whether it is answered."""
    layout = {"pipeline_splits": SPLITS, "gradient_accumulation": 4}
    config = build_config({"model": "resnet8", **layout, **asked})
    plan = plan_run(config)
    post: Any = SimpleNamespace(device=torch.device("cpu"), plan=plan, stages=plan.stages)
    return [(one.answers, one.is_answered) for one in _borders(post, plan.network, 4)]


FROM_THE_THIRD = [(False, False), (False, False), (False, True), (True, True)]


@pytest.mark.parametrize(
    "asked",
    [
        {"fine_tune_first_trainable_layer": "layer2/0/conv2"},
        {"variable_filter": ("layer2.0.conv2", "fc.bias")},
    ],
    ids=["frozen", "filtered"],
)
def test_no_gradient_goes_back_beyond_what_is_trained(asked: dict[str, Any]) -> None:
    assert ways(**asked) == FROM_THE_THIRD
    assert ways()[1] == (True, True)
