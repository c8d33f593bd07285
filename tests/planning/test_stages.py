"""Splitting at layer names, invalid splits, and balancing against an exhaustive search."""

from collections.abc import Sequence
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.errors import ConfigError
from convoy.planning.stages import StagePlan, balance, split_into_stages, stages_from_starts

HINT = " (`--pipeline-splits list` shows where a stage can start)"

LAYERS = (
    "conv1",
    "layer1/0/conv1",
    "layer1/0/relu",
    "layer1/1/conv1",
    "layer2/0/conv1",
    "layer2/0/relu",
    "layer2/10/conv1",
    "block",
    "block/b",
    "fc",
)


def problems(splits: Sequence[str]) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        split_into_stages(LAYERS, splits)
    return str(refused.value).splitlines()


def test_a_split_names_the_first_layer_of_the_next_stage():
    assert split_into_stages(("a", "b", "c", "d"), ["b", "d"]) == (
        StagePlan(stage=0, first=0, last=0, names=("a",)),
        StagePlan(stage=1, first=1, last=2, names=("b", "c")),
        StagePlan(stage=2, first=3, last=3, names=("d",)),
    )


def test_without_splits_there_is_one_stage():
    assert split_into_stages(LAYERS, []) == (StagePlan(0, 0, len(LAYERS) - 1, LAYERS),)


@pytest.mark.parametrize("count", range(len(LAYERS)))
def test_stages_cover_every_layer_once_in_order(count: int):
    for splits in combinations(LAYERS[1:], count):
        stages = split_into_stages(LAYERS, splits)

        assert tuple(name for stage in stages for name in stage.names) == LAYERS
        assert [stage.stage for stage in stages] == list(range(count + 1))
        assert [stage.names[0] for stage in stages[1:]] == list(splits)
        assert all(LAYERS[stage.first : stage.last + 1] == stage.names for stage in stages)


@pytest.mark.parametrize(
    ("split", "first"),
    [
        ("layer2", "layer2/0/conv1"),
        ("layer2/0", "layer2/0/conv1"),
        ("layer1", "layer1/0/conv1"),
        ("layer1/1", "layer1/1/conv1"),
        ("layer2/10", "layer2/10/conv1"),
    ],
)
def test_a_group_selects_its_first_layer(split: str, first: str):
    assert split_into_stages(LAYERS, [split])[1].names[0] == first


@pytest.mark.parametrize(
    ("split", "first"),
    [
        ("b1/0", "layer1/0/conv1"),
        ("stage2/unit1", "layer2/0/conv1"),
        ("b2/0/relu", "layer2/0/relu"),
        ("stage1/unit1/relu", "layer1/0/relu"),
        ("fc1", "fc"),
    ],
)
def test_a_split_may_be_an_alias(split: str, first: str):
    assert split_into_stages(LAYERS, [split])[1].names[0] == first


def test_layer_names_take_precedence_over_aliases():
    names = ("stem", "fc", "fc1", "add", "block/add")

    assert split_into_stages(names, ["fc1", "add"]) == stages_from_starts(names, [0, 2, 3])


def test_two_aliases_of_one_layer_are_refused():
    (problem,) = problems(["b2/0/relu", "stage2/unit1/relu"])

    assert "--pipeline-splits 'stage2/unit1/relu' is the same layer as 'b2/0/relu'" in problem
    assert problem.endswith("once" + HINT)


def test_suggestions_are_layer_names_and_not_aliases():
    (problem,) = problems(["stage1/unit9/relu"])

    assert "stage1/unit" not in problem.replace("'stage1/unit9/relu'", "")
    assert "layer" in problem


def test_a_group_ends_at_a_slash():
    assert problems(["layer2/1"])[0].startswith("--pipeline-splits 'layer2/1' is not a layer")


def test_layer_names_take_precedence_over_groups():
    assert split_into_stages(("stem", "block/a", "block", "head"), ["block"])[1].first == 2


def test_an_unknown_split_is_refused_with_near_names():
    (problem,) = problems(["layer1/1/conv2"])

    assert problem.startswith("--pipeline-splits 'layer1/1/conv2' is not a layer")
    assert "did you mean layer1/1/con" in problem
    assert problem.endswith("?" + HINT)


def test_a_group_is_suggested_as_a_near_name():
    (problem,) = problems(["layr2"])

    assert "did you mean layer2" in problem


def test_a_split_on_the_first_layer_is_refused():
    (problem,) = problems(["conv1"])

    assert problem.startswith("--pipeline-splits 'conv1' is the first layer")
    assert problem.endswith("omit it" + HINT)


def test_a_split_given_twice_is_refused():
    (problem,) = problems(["layer2", "layer2"])

    assert problem.startswith("--pipeline-splits 'layer2' is listed twice")
    assert problem.endswith("once" + HINT)


def test_two_names_of_one_layer_are_refused():
    (problem,) = problems(["layer2", "layer2/0/conv1"])

    assert "--pipeline-splits 'layer2/0/conv1' is the same layer as 'layer2'" in problem
    assert problem.endswith("once" + HINT)


def test_splits_out_of_order_are_refused_with_the_order():
    (problem,) = problems(["fc", "layer1/1", "layer2"])

    assert problem.startswith("--pipeline-splits fc layer1/1 layer2 is out of order")
    assert problem.endswith("use layer1/1 layer2 fc" + HINT)


def test_all_problems_of_a_list_are_reported_together():
    lines = problems(["conv1", "fc", "nothing-like-it", "layer2", "fc"])

    assert [" ".join(line.split()[1:4]) for line in lines] == [
        "'conv1' is the",
        "'nothing-like-it' is not",
        "'fc' is listed",
        "conv1 fc layer2",
    ]
    assert lines[-1].endswith("is out of order; use layer2 fc" + HINT)


def max_stage_cost(costs: Sequence[float], starts: Sequence[int]) -> float:
    return max(stage_costs(costs, starts))


def stage_costs(costs: Sequence[float], starts: Sequence[int]) -> list[float]:
    return [sum(costs[first:end]) for first, end in pairwise([*starts, len(costs)])]


def all_starts(layers: int, stages: int) -> list[tuple[int, ...]]:
    return [(0, *rest) for rest in combinations(range(1, layers), stages - 1)]


def test_layers_of_equal_cost_are_divided_equally():
    assert balance([1] * 12, 4) == (0, 3, 6, 9)


def test_an_expensive_layer_is_a_stage_and_the_rest_is_divided():
    assert balance([1, 1, 1, 1, 50, 1, 1], 4) == (0, 2, 4, 5)


def test_ties_select_the_earliest_splits():
    assert balance([1, 1, 1], 2) == (0, 1)


def test_the_scale_of_the_costs_does_not_matter():
    assert balance([10**15] * 3, 2) == balance([1] * 3, 2) == (0, 1)
    assert balance([7 * 10**12] * 10, 3) == balance([1] * 10, 3) == (0, 3, 6)


def test_no_stage_is_empty_if_layers_cost_nothing():
    assert balance([0, 0, 0, 0], 3) == (0, 1, 2)


@pytest.mark.parametrize("layers", range(1, 6))
def test_balance_matches_an_exhaustive_search(layers: int):
    for costs in product((0, 1, 2, 4), repeat=layers):
        for stages in range(1, layers + 1):
            best = min(
                all_starts(layers, stages),
                key=lambda starts, costs=costs: (
                    max_stage_cost(costs, starts),
                    sum(cost**2 for cost in stage_costs(costs, starts)),
                    starts,
                ),
            )

            assert balance(costs, stages) == best


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=9), st.data())
def test_no_other_split_has_a_cheaper_most_expensive_stage(costs: list[int], data: st.DataObject):
    stages = data.draw(st.integers(1, len(costs)))
    others = all_starts(len(costs), stages)

    assert max_stage_cost(costs, balance(costs, stages)) == min(
        max_stage_cost(costs, starts) for starts in others
    )


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40), st.data())
def test_any_costs_give_the_requested_number_of_nonempty_stages(
    costs: list[int], data: st.DataObject
):
    stages = data.draw(st.integers(1, len(costs)))
    starts = balance(costs, stages)

    assert len(starts) == stages
    assert starts[0] == 0
    assert all(before < after for before, after in pairwise([*starts, len(costs)]))


def test_balanced_starts_can_be_split():
    stages = stages_from_starts(LAYERS, balance([1] * len(LAYERS), 5))

    assert [len(stage.names) for stage in stages] == [2, 2, 2, 2, 2]


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ConfigError) as refused:
        balance([1, 2], 3)

    message = str(refused.value)
    assert "3 stages need at least 3 layers but the model has 2" in message
    assert "lower --shards to 2" in message
