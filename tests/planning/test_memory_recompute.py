"""Recompute checkpoints: patterns of layers and blocks, folded stages, and errors."""

import pytest

from convoy.config.schema import build_config
from convoy.errors import ConfigError
from convoy.planning.memory import RecomputePlan, plan_recompute, resolve_recompute, segment_starts
from convoy.planning.schedules import SCHEDULES

NAMES = [
    "conv1",
    "relu",
    "layer1/0/conv1",
    "layer1/0/downsample/0",
    "layer1/0/downsample/1",
    "layer1/0/relu",
    "layer1/1/conv1",
    "layer1/1/relu",
    "fc",
]


def plan(*patterns: str) -> RecomputePlan:
    return plan_recompute(patterns, NAMES)


def problems(*patterns: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        plan(*patterns)
    return str(refused.value).splitlines()


def is_enabled(
    stages: int, schedule: str = "interleaved", **options: bool | tuple[str, ...]
) -> bool:
    return resolve_recompute(build_config(options).memory, SCHEDULES[schedule], stages)


@pytest.mark.parametrize(
    ("options", "stages", "enabled"),
    [
        ({}, 1, False),
        ({}, 2, True),
        ({"enable_recompute": True}, 1, True),
        ({"enable_recompute": False}, 2, False),
    ],
)
def test_recomputation_is_on_by_default_with_several_stages(
    options: dict[str, bool], stages: int, enabled: bool
):
    assert is_enabled(stages, **options) == enabled


def test_recomputation_is_off_by_default_if_the_schedule_does_not_allow_it():
    assert not is_enabled(4, "zero-bubble")
    assert is_enabled(1, "zero-bubble", enable_recompute=True)


def test_recomputation_that_the_schedule_does_not_allow_is_refused():
    with pytest.raises(ConfigError) as refused:
        is_enabled(4, "zero-bubble", enable_recompute=True)

    message = str(refused.value)
    assert message.startswith(
        "--enable-recompute cannot be used with --pipeline-schedule zero-bubble"
    )
    assert message.endswith("use --pipeline-schedule interleaved")


@pytest.mark.parametrize(
    ("options", "stages", "schedule", "reason"),
    [
        ({}, 1, "grouped", "with one stage; use --enable-recompute"),
        ({"enable_recompute": False}, 2, "grouped", "by --no-enable-recompute; use --enable-"),
        ({}, 2, "zero-bubble", "with --pipeline-schedule zero-bubble; choose another schedule"),
    ],
)
def test_checkpoints_without_recomputation_are_refused(
    options: dict[str, bool], stages: int, schedule: str, reason: str
):
    with pytest.raises(ConfigError) as refused:
        is_enabled(stages, schedule, recompute_checkpoints=("relu",), **options)

    message = str(refused.value)
    assert message.startswith("--recompute-checkpoints has no effect")
    assert f"recomputation is off {reason}" in message
    assert message.endswith("or omit --recompute-checkpoints")


@pytest.mark.parametrize(
    ("pattern", "checkpoints"),
    [
        ("relu", ("relu",)),
        (".*/relu", ("layer1/0/relu", "layer1/1/relu")),
        ("layer1/0", ("layer1/0/relu",)),
        (r"layer\d/\d", ("layer1/0/relu", "layer1/1/relu")),
        ("layer1", ("layer1/1/relu",)),
        (".*downsample", ("layer1/0/downsample/1",)),
        ("relu|layer1/1", ("relu", "layer1/1/relu")),
        (".*", tuple(NAMES)),
    ],
)
def test_a_pattern_matches_full_names_and_a_block_selects_its_last_layer(
    pattern: str, checkpoints: tuple[str, ...]
):
    assert plan(pattern).checkpoints == checkpoints


def test_checkpoints_are_ordered_and_unique():
    assert plan("layer1/1", "relu", "layer1/1/relu").checkpoints == ("relu", "layer1/1/relu")


def test_the_input_of_a_folded_stage_is_stored():
    assert plan_recompute(("relu",), NAMES, [2, 6]) == RecomputePlan(
        True, ("relu", "layer1/0/relu")
    )


@pytest.mark.parametrize(
    ("pattern", "checkpoints"),
    [
        ("b1/0", ("layer1/0/relu",)),
        ("stage1/unit2", ("layer1/1/relu",)),
        (r"stage1/unit\d/relu", ("layer1/0/relu", "layer1/1/relu")),
        ("layer1/0/downsample_0", ("layer1/0/downsample/0",)),
        ("fc1|b0", ("conv1", "fc")),
    ],
)
def test_a_pattern_may_match_an_alias(pattern: str, checkpoints: tuple[str, ...]):
    assert plan(pattern).checkpoints == checkpoints


def test_a_pattern_that_matches_nothing_is_refused_with_near_names():
    (problem,) = problems("layer1/2")

    assert problem.startswith("--recompute-checkpoints 'layer1/2' matches no layer")
    assert problem.endswith("layer1/1, layer1/0, layer1?")


def test_an_invalid_pattern_is_refused():
    (problem,) = problems("layer(1")

    assert problem.startswith("--recompute-checkpoints 'layer(1' ")
    assert "missing )" in problem


def test_all_problems_of_the_patterns_are_reported_together():
    lines = problems("(", "nothing-like-it", "relu")

    assert [line.split()[1] for line in lines] == ["'('", "'nothing-like-it'"]


def test_without_checkpoints_a_stage_is_one_segment():
    assert segment_starts(NAMES, []) == [0]


def test_a_segment_starts_after_each_checkpoint_but_the_last():
    assert segment_starts(NAMES, ["relu", "layer1/0/conv1", "fc"]) == [0, 2, 3]


def test_segments_only_depend_on_the_layers_of_the_stage():
    recompute = RecomputePlan(True, ("relu", "layer1/0/relu"))

    assert recompute.segment_starts(NAMES[2:7]) == [0, 4]
    assert RecomputePlan(False).segment_starts(NAMES) is None
