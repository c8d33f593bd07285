"""Pipelines with one process per stage: order, memory and results of an update."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch
from support.pipelines import (
    Case,
    PipelinePool,
    pipeline_pool,
    starts_of,
    train_all,
    train_stage,
    train_with_invalid_schedule,
    watch,
)
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import (
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from convoy.parallel.channels import StageChannels
from convoy.parallel.executor import TrainingStage
from convoy.planning.actions import Action
from convoy.planning.schedules import SCHEDULES, make_schedule

STARTS = ("layer1/0/relu1", "layer2/0/conv2", "layer3/0/bn1")


@pytest.fixture(scope="module", params=[2, 3, 4])
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelinePool]:
    with pipeline_pool(request.param, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


def case_for(pool: PipelinePool, schedule: str, rounds: int = 2) -> Case:
    """By default twice the micro-batches that grouped needs, so all stages reach a steady state."""
    stages = len(pool.pipes)
    starts = starts_of(Case(), *STARTS[: stages - 1])
    return Case(starts, schedule, rounds * 2 * stages, samples=2, size=8)


@pytest.mark.processes
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_stage_stashes_as_planned(pool: PipelinePool, schedule: str):
    case = case_for(pool, schedule)
    results = pool.run(train_stage, case)
    stages = len(results)
    expected = [
        SCHEDULES[schedule].peak_stash(stage, stages, case.micro_batches) for stage in range(stages)
    ]

    assert [item.stash for item in results] == expected


@pytest.mark.processes
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_are_collected_once_per_micro_batch(pool: PipelinePool, schedule: str):
    case = case_for(pool, schedule, rounds=1)
    results = pool.run(train_stage, case, 2)

    for result in results:
        for name, digests in result.gradients.items():
            first, second = digests[: case.micro_batches], digests[case.micro_batches :]

            assert first == second, name
            assert len(set(first)) == case.micro_batches, name


@pytest.mark.processes
def test_images_are_read_when_their_forward_pass_starts(pool: PipelinePool):
    case = case_for(pool, "interleaved")
    first = pool.run(watch, case)[0]
    ahead = len(pool.pipes) - 1
    expected = [min(done + ahead, case.micro_batches) for done in range(1, case.micro_batches + 1)]

    assert first.taken == expected


@pytest.mark.processes
def test_results_exist_on_the_last_stage_only(pool: PipelinePool):
    case = case_for(pool, "grouped")
    *others, last = pool.run(watch, case)

    assert [other.results for other in others] == [0] * len(others)
    assert last.results == case.micro_batches


@pytest.mark.processes
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_transfer_is_pending_after_the_update(pool: PipelinePool, schedule: str):
    assert [item.left for item in pool.run(watch, case_for(pool, schedule))] == [0] * len(
        pool.pipes
    )


@pytest.mark.processes
def test_several_pipelines_run_in_the_same_processes(pool: PipelinePool):
    cases = [case_for(pool, schedule) for schedule in ("grouped", "sequential", "interleaved")]
    by_stage = pool.run(train_all, cases)

    for stage in by_stage:
        assert stage[0].gradients == stage[1].gradients == stage[2].gradients


@pytest.mark.processes
def test_a_schedule_that_exceeds_its_stash_is_an_error(tmp_path_factory):
    with pipeline_pool(1, tmp_path_factory.mktemp("pool")) as pool:
        (result,) = pool.run(train_with_invalid_schedule, Case(micro_batches=3))

    assert "stage 0 of 1 stashes 2 micro-batches" in result
    assert "invalid with 3 micro-batches" in result


class Arriving:
    """A channel to the previous stage that counts the gradients kept until they arrive."""

    def __init__(self) -> None:
        self.kept = 0

    def send(self, bundle: Sequence[Tensor]) -> "Arriving":
        del bundle
        self.kept += 1
        return self

    def wait(self) -> None:
        self.kept -= 1


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, values: Tensor) -> tuple[Tensor]:
        return (self.weight * values,)


def test_a_sent_gradient_is_kept_until_the_next_inputs_prove_that_it_arrived():
    """The first of two interleaved stages sends two micro-batches before a gradient returns."""
    upstream = Arriving()
    channels = StageChannels(1, 2, upstream, sends_gradients=True)
    stage = TrainingStage(Scale(), channels, lambda: None, SCHEDULES["interleaved"], 5)
    stage.start()
    kept = []
    for micro in range(5):
        stage.forward(micro, (torch.ones(1),))
        kept.append(upstream.kept)
        stage.backward(micro, (torch.ones(1),))

    assert kept == [0, 1, 1, 1, 1]
    stage.finish()
    assert upstream.kept == 0


def torch_order(schedule: type, processes: int, stages: int, micro_batches: int) -> list[list[str]]:
    """The actions that torch generates for each process, without idle slots."""
    inputs = SimpleNamespace(
        pp_group_size=processes,
        n_local_stages=stages // processes,
        microbatches_per_round=processes,
        _n_microbatches=micro_batches,
    )
    rows = [schedule._calculate_single_rank_operations(inputs, item) for item in range(processes)]
    return [[str(action) for action in row if action is not None] for row in rows]


def torch_notation(process: int, action: Action) -> str:
    """An action as torch prints it."""
    return str(action) if action.stage is not None else f"{process}{action}"


@pytest.mark.parametrize("stages", range(2, 7))
def test_zero_bubble_has_the_order_of_torch(stages: int):
    for count in range(stages, 4 * stages, stages):
        ours = [
            [torch_notation(process, action) for action in row]
            for process, row in enumerate(SCHEDULES["zero-bubble"].orders(stages, count))
        ]

        assert ours == torch_order(ScheduleInterleavedZeroBubble, stages, stages, count)


@pytest.mark.parametrize("rounds", [2, 3, 4])
@pytest.mark.parametrize("processes", range(2, 6))
def test_looped_has_the_order_of_torch(processes: int, rounds: int):
    stages = processes * rounds
    for count in range(processes, 5 * processes, processes):
        ours = [
            list(map(str, row)) for row in make_schedule("looped", rounds).orders(stages, count)
        ]

        assert ours == torch_order(ScheduleInterleaved1F1B, processes, stages, count)
