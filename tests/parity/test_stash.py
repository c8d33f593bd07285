"""The law of the stash: every stage of every schedule holds as many sets as was promised."""

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
def line(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelinePool]:
    with pipeline_pool(request.param, tmp_path_factory.mktemp("line")) as output:
        yield output


def law(schedule: str, stages: int) -> list[int]:
    """Sets between forward and backward, as the schedules define them."""
    behind = range(stages - 1, -1, -1)  # stages behind each one
    match schedule:
        case "grouped":
            return [2 * item + 2 for item in behind]
        case "interleaved" | "1f1b":
            return [item + 1 for item in behind]
        case "zero-bubble":
            return [stages] * stages
        case _:
            return [1] * stages


@sweep("schedule", SCHEDULES)
def test_each_stage_holds_as_many_sets_as_the_law_says(line: PipelinePool, schedule: str):
    stages = len(line.pipes)
    starts = balance([1] * len(Case().layers), stages)
    case = Case(starts, schedule, 4 * stages, samples=2, size=8)
    seen = line.run(train_stage, case)

    assert [item.stash for item in seen] == law(schedule, stages)
