"""A network split into stages has the same bits as in a single process.

The tests compare the gradients of every micro-batch, batch statistics, losses and accuracy.
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
CHECKPOINTS = ("layer1/0/relu", "layer2/0/relu", "layer3/0/relu")
INSIDE_BLOCKS = {
    3: ("layer1/0/bn2", "layer3/0/relu1"),
    4: ("layer1/0/conv2", "layer2/0/downsample/0", "layer3/0/add"),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelinePool]:
    """Two processes."""
    with pipeline_pool(2, tmp_path_factory.mktemp("pair")) as pool:
        yield pool


@pytest.fixture(scope="module", params=[3, 4])
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelinePool]:
    with pipeline_pool(request.param, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


def differing_cases(pool: PipelinePool, cases: Sequence[Case]) -> dict[Case, list[str]]:
    """The cases whose update differs from that of a single process, and what differs."""
    expected = {
        case: train_single_process(case) for case in {replace(item, starts=(0,)) for item in cases}
    }
    parts = pool.run(train_all, list(cases))
    found = {
        case: differences(
            joined([part[index] for part in parts]), expected[replace(case, starts=(0,))]
        )
        for index, case in enumerate(cases)
    }
    return {case: names for case, names in found.items() if names}


def differences(ours: StageResult, expected: StageResult) -> list[str]:
    assert ours.gradients.keys() == expected.gradients.keys()
    names = [name for name, item in ours.gradients.items() if item != expected.gradients[name]]
    if (ours.statistics, ours.losses, ours.correct) != (
        expected.statistics,
        expected.losses,
        expected.correct,
    ):
        names.append("statistics or results")
    return names


def all_splits(case: Case, step: int = 1) -> list[Case]:
    """A split before each layer, or before every `step`-th."""
    return [replace(case, starts=(0, start)) for start in range(1, len(case.layers), step)]


# One schedule is split at every layer, the others at every fifth.
STEPS = {"grouped": 5, "interleaved": 1, "sequential": 5, "zero-bubble": 5}


@pytest.mark.slow
def test_a_split_at_any_layer_gives_the_same_bits(pair: PipelinePool):
    cases = [item for name, step in STEPS.items() for item in all_splits(Case(schedule=name), step)]

    assert differing_cases(pair, cases) == {}


@pytest.mark.evidence
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_split_at_any_layer_gives_the_same_bits_under_every_schedule(
    pair: PipelinePool, schedule: str
):
    assert differing_cases(pair, all_splits(Case(schedule=schedule))) == {}


OTHER_NETWORKS = (
    Case(model="resnet8-pad"),  # shortcuts without weights
    Case(model="resnet8-group"),
    Case(size=4, samples=3),  # the last images are single pixels
    Case(model="pooled-norm"),
    Case(model="bottleneck", size=16, samples=2, micro_batches=2),
)


@pytest.mark.slow
def test_other_networks_split_at_every_fourth_layer_give_the_same_bits(pair: PipelinePool):
    schedules = ("interleaved", "zero-bubble")
    cases = [
        split
        for index, case in enumerate(OTHER_NETWORKS)
        for split in all_splits(replace(case, schedule=schedules[index % 2]), 4)
    ]

    assert differing_cases(pair, cases) == {}


@pytest.mark.evidence
@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble"])
@pytest.mark.parametrize("case", OTHER_NETWORKS, ids=str)
def test_other_networks_split_at_any_layer_give_the_same_bits(
    pair: PipelinePool, case: Case, schedule: str
):
    assert differing_cases(pair, all_splits(replace(case, schedule=schedule))) == {}


@pytest.mark.slow
def test_recomputation_in_stages_gives_the_same_bits(pair: PipelinePool):
    cases = all_splits(Case(recompute=(), schedule="interleaved"), 3)
    expected = train_single_process(Case(schedule="interleaved"))
    parts = pair.run(train_all, cases)

    for case, first, second in zip(cases, *parts, strict=True):
        assert differences(joined([first, second]), expected) == [], case.starts


def test_a_split_inside_a_block_gives_the_same_bits(pair: PipelinePool):
    case = Case()
    cases = [
        replace(case, starts=starts_of(case, "layer2/0/conv2"), schedule=schedule)
        for schedule in SCHEDULES
    ]

    assert differing_cases(pair, cases) == {}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_stages_that_end_inside_blocks_give_the_same_bits(pool: PipelinePool, schedule: str):
    stages = len(pool.pipes)
    case = Case(schedule=schedule, micro_batches=2 * stages)
    starts = starts_of(case, *INSIDE_BLOCKS[stages])
    cases = [replace(case, starts=starts, model=model) for model in ("resnet8", "resnet8-group")]
    if case.order.allows_recompute:
        cases.append(replace(case, starts=starts, recompute=CHECKPOINTS))

    assert differing_cases(pool, cases) == {}


LOOPED_STARTS = (
    "layer1/0/conv2",
    "layer1/0/add",
    "layer2/0/bn2",
    "layer2/0/downsample/0",
    "layer3/0/relu1",
)


@pytest.mark.parametrize("model", ["resnet8", "resnet8-group"])
@pytest.mark.parametrize("rounds", [2, 3])
def test_several_stages_per_process_give_the_same_bits(pair: PipelinePool, rounds: int, model: str):
    case = Case(schedule="looped", micro_batches=6, model=model, stages_per_process=rounds)
    starts = starts_of(case, *LOOPED_STARTS[: 2 * rounds - 1])
    plain = replace(case, starts=starts)
    cases = [plain, replace(plain, recompute=CHECKPOINTS)]
    expected = train_single_process(replace(case, starts=(0,), stages_per_process=1))
    parts = pair.run(train_loops, cases)

    for index, item in enumerate(cases):
        ours = joined(in_order([part[index] for part in parts]))

        assert differences(ours, expected) == [], item.recompute


@pytest.mark.slow
def test_consecutive_looped_splits_at_any_layer_give_the_same_bits(pair: PipelinePool):
    """Every split point is the first, the second and the third of the three splits once."""
    case = Case(schedule="looped", micro_batches=2, stages_per_process=2)
    last = len(case.layers) - 3
    cases = [replace(case, starts=(0, item, item + 1, item + 2)) for item in range(1, last + 1)]
    expected = train_single_process(replace(case, starts=(0,), stages_per_process=1))
    parts = pair.run(train_loops, cases)

    for index, item in enumerate(cases):
        ours = joined(in_order([part[index] for part in parts]))

        assert differences(ours, expected) == [], item.starts
