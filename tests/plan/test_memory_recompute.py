"""Which results are kept: patterns of layers and blocks, borders of folded stages, refusals."""

import pytest

from convoy.config.schema import build_config
from convoy.errors import ConfigError
from convoy.plan.memory import RecomputePlan, plan_recompute, recomputes, segment_starts
from convoy.plan.schedules import SCHEDULES

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


def is_on(stages: int, schedule: str = "interleaved", **asked: bool | tuple[str, ...]) -> bool:
    return recomputes(build_config(asked).memory, SCHEDULES[schedule], stages)


@pytest.mark.parametrize(
    ("asked", "stages", "enabled"),
    [
        ({}, 1, False),
        ({}, 2, True),
        ({"enable_recompute": True}, 1, True),
        ({"enable_recompute": False}, 2, False),
    ],
)
def test_unset_recomputation_is_on_where_there_are_several_stages(
    asked: dict[str, bool], stages: int, enabled: bool
):
    assert is_on(stages, **asked) == enabled


def test_unset_recomputation_is_off_where_the_schedule_does_not_allow_it():
    assert not is_on(4, "zero-bubble")
    assert is_on(1, "zero-bubble", enable_recompute=True)


def test_recomputation_that_the_schedule_does_not_allow_is_refused():
    with pytest.raises(ConfigError) as refused:
        is_on(4, "zero-bubble", enable_recompute=True)

    assert str(refused.value) == (
        "--enable-recompute cannot be used with --pipeline-schedule zero-bubble: each half of a "
        "backward pass would compute its forward again; leave it out, or use --pipeline-schedule "
        "interleaved"
    )


@pytest.mark.parametrize(
    ("asked", "stages", "schedule", "why"),
    [
        ({}, 1, "grouped", "with one stage; use --enable-recompute"),
        ({"enable_recompute": False}, 2, "grouped", "by --no-enable-recompute; use --enable-"),
        ({}, 2, "zero-bubble", "with --pipeline-schedule zero-bubble; choose another schedule"),
    ],
)
def test_patterns_without_recomputation_are_refused_with_the_way_out(
    asked: dict[str, bool], stages: int, schedule: str, why: str
):
    with pytest.raises(ConfigError) as refused:
        is_on(stages, schedule, recompute_checkpoints=("relu",), **asked)

    told = str(refused.value)
    assert told.startswith(
        f"--recompute-checkpoints says what recomputation keeps, but recomputation is off {why}"
    )
    assert told.endswith(", or leave it out")


@pytest.mark.parametrize(
    ("pattern", "kept"),
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
def test_a_pattern_means_whole_names_and_a_block_its_last_layer(
    pattern: str, kept: tuple[str, ...]
):
    assert plan(pattern).kept == kept


def test_kept_layers_stand_in_their_order_and_once():
    assert plan("layer1/1", "relu", "layer1/1/relu").kept == ("relu", "layer1/1/relu")


def test_what_comes_into_a_folded_stage_is_kept():
    assert plan_recompute(("relu",), NAMES, [2, 6]) == RecomputePlan(
        True, ("relu", "layer1/0/relu")
    )


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("b1/0", ("layer1/0/relu",)),
        ("stage1/unit2", ("layer1/1/relu",)),
        (r"stage1/unit\d/relu", ("layer1/0/relu", "layer1/1/relu")),
        ("layer1/0/downsample_0", ("layer1/0/downsample/0",)),
        ("fc1|b0", ("conv1", "fc")),
    ],
)
def test_a_pattern_may_match_the_words_of_other_applications(pattern: str, kept: tuple[str, ...]):
    assert plan(pattern).kept == kept


def test_a_pattern_that_matches_nothing_is_refused_with_near_names():
    assert problems("layer1/2") == [
        "--recompute-checkpoints 'layer1/2' matches no layer of this model; "
        "did you mean layer1/1, layer1/0, layer1?"
    ]


def test_what_is_no_pattern_is_refused():
    (problem,) = problems("layer(1")

    assert problem.startswith("--recompute-checkpoints 'layer(1' is no pattern: missing ), ")


def test_all_problems_of_the_patterns_are_reported_together():
    listed = problems("(", "nothing-like-it", "relu")

    assert [line.split()[1] for line in listed] == ["'('", "'nothing-like-it'"]


def test_without_points_the_whole_slice_is_one_segment():
    assert segment_starts(NAMES, []) == [0]


def test_a_segment_begins_after_each_kept_layer_but_the_last():
    assert segment_starts(NAMES, ["relu", "layer1/0/conv1", "fc"]) == [0, 2, 3]


def test_a_stage_has_segments_of_its_own_layers_alone():
    recompute = RecomputePlan(True, ("relu", "layer1/0/relu"))

    assert recompute.starts(NAMES[2:7]) == [0, 4]
    assert RecomputePlan(False).starts(NAMES) is None
