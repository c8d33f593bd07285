"""The tensors and gradients that stages send to each other."""

from typing import Any

import pytest
from support.pipelines import Case, starts_of

from convoy.config.schema import build_config
from convoy.planning.plan import plan_run
from convoy.planning.stages import StageBoundary, stage_boundary

SPLITS = ("layer1", "layer2/0/conv2", "fc")


def gradient_transfers(**options: Any) -> list[tuple[bool, bool]]:
    """Whether each stage sends gradients, and whether it receives them."""
    layout = {"pipeline_splits": SPLITS, "gradient_accumulation": 4}
    config = build_config({"model": "resnet8", **layout, **options})
    plan = plan_run(config)
    boundaries = [
        stage_boundary(plan.network, stage, 4, plan.first_trained_layer) for stage in plan.stages
    ]
    return [(item.sends_gradients, item.receives_gradients) for item in boundaries]


FROM_THIRD_STAGE = [(False, False), (False, False), (False, True), (True, True)]


@pytest.mark.parametrize(
    "options",
    [
        {"fine_tune_first_trainable_layer": "layer2/0/conv2"},
        {"variable_filter": ("layer2.0.conv2", "fc.bias")},
    ],
    ids=["frozen", "filtered"],
)
def test_no_gradient_is_sent_before_the_first_trained_layer(options: dict[str, Any]) -> None:
    assert gradient_transfers(**options) == FROM_THIRD_STAGE
    assert gradient_transfers()[1] == (True, True)


def boundary(case: Case, stage: int) -> StageBoundary:
    return stage_boundary(case.network, case.stages[stage], case.samples)


def test_a_boundary_inside_a_block_includes_the_side_branch():
    case = Case(starts=starts_of(Case(), "layer2/0/conv2"), samples=5)

    assert boundary(case, 1).incoming == ((5, 32, 6, 6), (5, 16, 12, 12))


def test_the_outputs_of_a_stage_are_the_inputs_of_the_next():
    for start in range(1, len(Case().layers)):
        case = Case(starts=(0, start))

        assert boundary(case, 0).outgoing == boundary(case, 1).incoming


def test_tensors_are_vectors_after_pooling_and_single_pixels_are_images():
    pooled = Case(starts=starts_of(Case(), "fc"), size=4)
    single = Case(starts=starts_of(Case(), "avgpool"), size=4)

    assert boundary(pooled, 1).incoming == ((4, 64),)
    assert boundary(single, 1).incoming == ((4, 64, 1, 1),)
