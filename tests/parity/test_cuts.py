"""However a network is cut into stages, every micro-batch leaves the same bits as in one piece.

Compared are the gradients of every micro-batch, the batch statistics, losses and right answers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from support.looped_pipelines import in_order, train_loops
from support.pipelines import (
    Case,
    PipelinePool,
    StageResult,
    joined,
    pipeline_pool,
    starts_of,
    train_all,
    train_single_process,
)

pytestmark = pytest.mark.processes

SCHEDULES = ("grouped", "interleaved", "sequential", "zero-bubble")
KEPT = ("layer1/0/relu", "layer2/0/relu", "layer3/0/relu")
INSIDE_BLOCKS = {
    3: ("layer1/0/bn2", "layer3/0/relu1"),
    4: ("layer1/0/conv2", "layer2/0/downsample/0", "layer3/0/add"),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelinePool]:
    """Two processes for all cuts."""
    with pipeline_pool(2, tmp_path_factory.mktemp("pair")) as output:
        yield output


@pytest.fixture(scope="module", params=[3, 4])
def line(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelinePool]:
    with pipeline_pool(request.param, tmp_path_factory.mktemp("line")) as output:
        yield output


def differing(line: PipelinePool, cases: Sequence[Case]) -> dict[Case, list[str]]:
    """The cases whose update is not that of the network in one piece, and what differs."""
    alone = {
        case: train_single_process(case) for case in {replace(item, starts=(0,)) for item in cases}
    }
    parts = line.run(train_all, list(cases))
    found = {
        case: differences(
            joined([part[index] for part in parts]), alone[replace(case, starts=(0,))]
        )
        for index, case in enumerate(cases)
    }
    return {case: names for case, names in found.items() if names}


def differences(ours: StageResult, alone: StageResult) -> list[str]:
    assert ours.gradients.keys() == alone.gradients.keys()
    names = [name for name, item in ours.gradients.items() if item != alone.gradients[name]]
    if (ours.statistics, ours.losses, ours.correct) != (
        alone.statistics,
        alone.losses,
        alone.correct,
    ):
        names.append("statistics or results")
    return names


def every_cut(case: Case, step: int = 1) -> list[Case]:
    """A cut before each layer, or before every `step`-th."""
    return [replace(case, starts=(0, start)) for start in range(1, len(case.layers), step)]


# Schedules share the borders: one of them is cut everywhere, the others at every fifth layer.
STEPS = {"grouped": 5, "interleaved": 1, "sequential": 5, "zero-bubble": 5}


@pytest.mark.slow
def test_a_cut_at_any_layer_leaves_the_same_bits(pair: PipelinePool):
    cases = [item for name, step in STEPS.items() for item in every_cut(Case(schedule=name), step)]

    assert differing(pair, cases) == {}


@pytest.mark.evidence
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_under_every_schedule_a_cut_at_any_layer_leaves_the_same_bits(
    pair: PipelinePool, schedule: str
):
    assert differing(pair, every_cut(Case(schedule=schedule))) == {}


OTHER_NETWORKS = (
    Case(model="resnet8-pad"),  # shortcuts without weights
    Case(model="resnet8-group"),
    Case(size=4, samples=3),  # the last images are single pixels
    Case(model="pooled-norm"),
    Case(model="bottleneck", size=16, samples=2, micro_batches=2),
)


@pytest.mark.slow
def test_other_networks_cut_at_every_fourth_layer_leave_the_same_bits(pair: PipelinePool):
    schedules = ("interleaved", "zero-bubble")
    cases = [
        cut
        for index, case in enumerate(OTHER_NETWORKS)
        for cut in every_cut(replace(case, schedule=schedules[index % 2]), 4)
    ]

    assert differing(pair, cases) == {}


@pytest.mark.evidence
@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble"])
@pytest.mark.parametrize("case", OTHER_NETWORKS, ids=str)
def test_other_networks_cut_at_any_layer_leave_the_same_bits(
    pair: PipelinePool, case: Case, schedule: str
):
    assert differing(pair, every_cut(replace(case, schedule=schedule))) == {}


@pytest.mark.slow
def test_recomputation_in_stages_leaves_the_same_bits(pair: PipelinePool):
    cases = every_cut(Case(recompute=(), schedule="interleaved"), 3)
    alone = train_single_process(Case(schedule="interleaved"))
    parts = pair.run(train_all, cases)

    for case, first, second in zip(cases, *parts, strict=True):
        assert differences(joined([first, second]), alone) == [], case.starts


def test_a_cut_inside_a_block_leaves_the_same_bits(pair: PipelinePool):
    case = Case()
    cases = [
        replace(case, starts=starts_of(case, "layer2/0/conv2"), schedule=schedule)
        for schedule in SCHEDULES
    ]

    assert differing(pair, cases) == {}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_stages_that_end_inside_blocks_leave_the_same_bits(line: PipelinePool, schedule: str):
    stages = len(line.pipes)
    case = Case(schedule=schedule, micro_batches=2 * stages)
    starts = starts_of(case, *INSIDE_BLOCKS[stages])
    cases = [replace(case, starts=starts, model=model) for model in ("resnet8", "resnet8-group")]
    if case.order.allows_recompute:
        cases.append(replace(case, starts=starts, recompute=KEPT))

    assert differing(line, cases) == {}


AROUND = (
    "layer1/0/conv2",
    "layer1/0/add",
    "layer2/0/bn2",
    "layer2/0/downsample/0",
    "layer3/0/relu1",
)


@pytest.mark.parametrize("model", ["resnet8", "resnet8-group"])
@pytest.mark.parametrize("rounds", [2, 3])
def test_several_stages_in_each_process_leave_the_same_bits(
    pair: PipelinePool, rounds: int, model: str
):
    case = Case(schedule="looped", micro_batches=6, model=model, stages_per_process=rounds)
    starts = starts_of(case, *AROUND[: 2 * rounds - 1])
    plain = replace(case, starts=starts)
    cases = [plain, replace(plain, recompute=KEPT)]
    alone = train_single_process(replace(case, starts=(0,), stages_per_process=1))
    parts = pair.run(train_loops, cases)

    for index, item in enumerate(cases):
        ours = joined(in_order([part[index] for part in parts]))

        assert differences(ours, alone) == [], item.recompute


@pytest.mark.slow
def test_three_stages_that_begin_anywhere_in_one_process_leave_the_same_bits(pair: PipelinePool):
    """Every border inside the network stands once at each of the three places."""
    case = Case(schedule="looped", micro_batches=2, stages_per_process=2)
    last = len(case.layers) - 3
    cases = [replace(case, starts=(0, item, item + 1, item + 2)) for item in range(1, last + 1)]
    alone = train_single_process(replace(case, starts=(0,), stages_per_process=1))
    parts = pair.run(train_loops, cases)

    for index, item in enumerate(cases):
        ours = joined(in_order([part[index] for part in parts]))

        assert differences(ours, alone) == [], item.starts
