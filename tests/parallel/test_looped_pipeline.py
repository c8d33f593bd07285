"""Several stages in each process: order, memory and results of an update that goes around."""

from collections.abc import Iterator

import pytest
from support.looped_pipelines import (
    LoopedResult,
    count_remaining_tensors,
    in_order,
    receive_in_reverse_order,
    train_loop,
)
from support.pipelines import Case, PipelinePool, pipeline_pool, starts_of

pytestmark = pytest.mark.processes

STARTS = (
    "layer1/0/bn2",
    "layer2/0/conv2",
    "layer2/0/add",
    "layer3/0/relu1",
    "layer3/0/conv2",
)


@pytest.fixture(scope="module", params=[2, 3])
def line(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelinePool]:
    with pipeline_pool(request.param, tmp_path_factory.mktemp("line")) as output:
        yield output


@pytest.fixture(params=[2, 3])
def case(line: PipelinePool, request: pytest.FixtureRequest) -> Case:
    """Three turns of micro-batches; six stages at most, so three processes hold two each."""
    processes = len(line.pipes)
    rounds = min(request.param, 6 // processes)
    starts = starts_of(Case(), *STARTS[: rounds * processes - 1])
    return Case(starts, "looped", 3 * processes, samples=2, size=8, stages_per_process=rounds)


def test_each_stage_and_each_process_stash_as_planned(line: PipelinePool, case: Case):
    around: list[LoopedResult] = line.run(train_loop, case)
    seen, stages, count = in_order(around), len(case.starts), case.micro_batches
    law = [case.order.peak_stash(stage, stages, count) for stage in range(stages)]

    assert [item.stash for item in seen] == law
    assert [item.stash for item in around] == [
        case.order.process_peak_stash(process, stages, count) for process in range(len(around))
    ]


def test_gradients_of_each_stage_are_collected_once_per_micro_batch(line: PipelinePool, case: Case):
    for part in in_order(line.run(train_loop, case, 2)):
        for name, digests in part.gradients.items():
            first, second = digests[: case.micro_batches], digests[case.micro_batches :]

            assert first == second, name
            assert len(set(first)) == case.micro_batches, name


def test_only_the_process_with_the_last_stage_has_results(line: PipelinePool, case: Case):
    *others, last = line.run(train_loop, case)

    assert all(seen.losses == [] for process in others for seen in process.seen)
    assert len(last.seen[-1].losses) == case.micro_batches


def test_no_transfer_is_pending_after_the_update(line: PipelinePool, case: Case):
    assert line.run(count_remaining_tensors, case) == [0] * len(line.pipes)


def test_transfers_of_different_boundaries_are_not_confused(
    tmp_path_factory: pytest.TempPathFactory,
):
    with pipeline_pool(2, tmp_path_factory.mktemp("pair")) as pair:
        assert pair.run(receive_in_reverse_order) == [[], [3, 1]]
