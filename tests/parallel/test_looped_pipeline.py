"""Pipelines with several stages per process: order, memory and results of an update."""

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
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelinePool]:
    with pipeline_pool(request.param, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


@pytest.fixture(params=[2, 3])
def case(pool: PipelinePool, request: pytest.FixtureRequest) -> Case:
    """Three groups of micro-batches and at most six stages, so each of three processes has two."""
    processes = len(pool.pipes)
    rounds = min(request.param, 6 // processes)
    starts = starts_of(Case(), *STARTS[: rounds * processes - 1])
    return Case(starts, "looped", 3 * processes, samples=2, size=8, stages_per_process=rounds)


def test_each_stage_and_each_process_stash_as_planned(pool: PipelinePool, case: Case):
    results: list[LoopedResult] = pool.run(train_loop, case)
    seen, stages, count = in_order(results), len(case.starts), case.micro_batches
    expected = [case.order.peak_stash(stage, stages, count) for stage in range(stages)]

    assert [item.stash for item in seen] == expected
    assert [item.stash for item in results] == [
        case.order.process_peak_stash(process, stages, count) for process in range(len(results))
    ]


def test_gradients_of_each_stage_are_collected_once_per_micro_batch(pool: PipelinePool, case: Case):
    for part in in_order(pool.run(train_loop, case, 2)):
        for name, digests in part.gradients.items():
            first, second = digests[: case.micro_batches], digests[case.micro_batches :]

            assert first == second, name
            assert len(set(first)) == case.micro_batches, name


def test_only_the_process_with_the_last_stage_has_results(pool: PipelinePool, case: Case):
    *others, last = pool.run(train_loop, case)

    assert all(seen.losses == [] for process in others for seen in process.seen)
    assert len(last.seen[-1].losses) == case.micro_batches


def test_no_transfer_is_pending_after_the_update(pool: PipelinePool, case: Case):
    assert pool.run(count_remaining_tensors, case) == [0] * len(pool.pipes)


def test_transfers_of_different_boundaries_are_not_confused(
    tmp_path_factory: pytest.TempPathFactory,
):
    with pipeline_pool(2, tmp_path_factory.mktemp("pair")) as pair:
        assert pair.run(receive_in_reverse_order) == [[], [3, 1]]
