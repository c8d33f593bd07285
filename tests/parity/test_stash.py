"""Every stage of every schedule stashes as many micro-batches as planned."""

from collections.abc import Iterator

import pytest
from support.pipelines import Case, PipelinePool, pipeline_pool, train_stage
from support.sweeps import sweep

from convoy.planning.schedules import SCHEDULES
from convoy.planning.stages import balance

pytestmark = pytest.mark.processes


@pytest.fixture(
    scope="module",
    params=[2, 4, *(pytest.param(n, marks=pytest.mark.evidence) for n in (3, 5, 6))],
)
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelinePool]:
    with pipeline_pool(request.param, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


def expected_stash(schedule: str, stages: int) -> list[int]:
    """Activation sets between forward and backward on each stage."""
    later_stages = range(stages - 1, -1, -1)  # after each stage
    match schedule:
        case "grouped":
            return [2 * item + 2 for item in later_stages]
        case "interleaved" | "1f1b":
            return [item + 1 for item in later_stages]
        case "zero-bubble":
            return [stages] * stages
        case _:
            return [1] * stages


@sweep("schedule", SCHEDULES)
def test_each_stage_stashes_the_expected_number_of_sets(pool: PipelinePool, schedule: str):
    stages = len(pool.pipes)
    starts = balance([1] * len(Case().layers), stages)
    case = Case(starts, schedule, 4 * stages, samples=2, size=8)
    results = pool.run(train_stage, case)

    assert [item.stash for item in results] == expected_stash(schedule, stages)
