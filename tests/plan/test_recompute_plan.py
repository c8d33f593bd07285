"""Which results are kept: patterns of layers and blocks, borders of folded stages, refusals."""

import pytest

from convoy.config.sections.machine import MemoryConfig
from convoy.errors import ConfigError
from convoy.plan.recompute import RecomputePlan, plan_recompute, segment_starts

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


def plan(*patterns: str, enabled: bool | None = True, stages: int = 1) -> RecomputePlan:
    return plan_recompute(
        MemoryConfig(enable_recompute=enabled, recompute_checkpoints=patterns), NAMES, stages
    )


def problems(*patterns: str, enabled: bool | None = True) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        plan(*patterns, enabled=enabled)
    return str(refused.value).splitlines()


@pytest.mark.parametrize(
    ("asked", "stages", "enabled"),
    [
        (None, 1, False),
        (None, 2, True),
        (True, 1, True),
        (False, 2, False),
    ],
)
def test_unset_recomputation_is_on_where_there_are_several_stages(
    asked: bool | None, stages: int, enabled: bool
):
    assert plan(enabled=asked, stages=stages) == RecomputePlan(enabled)


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
    folded = plan_recompute(MemoryConfig(recompute_checkpoints=("relu",)), NAMES, 3, [2, 6])

    assert folded == RecomputePlan(True, ("relu", "layer1/0/relu"))


def test_without_recomputation_borders_are_nothing():
    wish = MemoryConfig(enable_recompute=False)

    assert plan_recompute(wish, NAMES, 3, [2, 6]) == RecomputePlan(False)


def test_a_pattern_that_matches_nothing_is_refused_with_near_names():
    assert problems("layer1/2") == [
        "--recompute-checkpoints 'layer1/2' matches no layer of this model; "
        "did you mean layer1/1, layer1/0, layer1?"
    ]


def test_what_is_no_pattern_is_refused():
    (problem,) = problems("layer(1")

    assert problem.startswith("--recompute-checkpoints 'layer(1' is no pattern: missing ), ")


@pytest.mark.parametrize(
    ("enabled", "why"), [(None, "with one stage"), (False, "by --no-enable-recompute")]
)
def test_patterns_without_recomputation_are_refused_with_the_way_out(
    enabled: bool | None, why: str
):
    assert problems("relu", enabled=enabled) == [
        f"--recompute-checkpoints says what recomputation keeps, but recomputation is off {why}; "
        "use --enable-recompute, or leave it out"
    ]


def test_all_problems_of_the_patterns_are_reported_together():
    listed = problems("(", "nothing-like-it", "relu", enabled=False)

    assert [line.split()[1] for line in listed] == ["says", "'('", "'nothing-like-it'"]


def test_without_points_the_whole_slice_is_one_segment():
    assert segment_starts(NAMES, []) == [0]


def test_a_segment_begins_after_each_kept_layer_but_the_last():
    assert segment_starts(NAMES, ["relu", "layer1/0/conv1", "fc"]) == [0, 2, 3]


def test_a_stage_has_segments_of_its_own_layers_alone():
    recompute = RecomputePlan(True, ("relu", "layer1/0/relu"))

    assert recompute.starts(NAMES[2:7]) == [0, 4]
    assert RecomputePlan(False).starts(NAMES) is None
