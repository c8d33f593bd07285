"""Forward-only passes through a line of processes."""

from collections.abc import Iterator

import pytest
import torch
from support.looped_pipelines import infer_looped, predict_looped
from support.pipelines import (
    Case,
    PipelinePool,
    PredictionDigests,
    Trained,
    digest,
    infer,
    joined,
    pipeline_pool,
    starts_of,
    train_single_process,
)

pytestmark = pytest.mark.processes

STARTS = ("layer2/0/bn2", "layer3/0/relu1")


@pytest.fixture(scope="module", params=[2, 3])
def line(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelinePool]:
    with pipeline_pool(request.param, tmp_path_factory.mktemp("line")) as output:
        yield output


def case_for(line: PipelinePool, batches: int = 6) -> Case:
    starts = starts_of(Case(), *STARTS[: len(line.pipes) - 1])
    return Case(starts, "sequential", batches)


def answers_alone(case: Case) -> list[str]:
    network = Trained(Case(), 0).slice.eval()
    with torch.inference_mode():
        return [digest(network(images)[0]) for images, _ in case.batches()]


@pytest.mark.parametrize("batches", [1, 2, 7])
def test_the_last_stage_has_the_logits_of_a_single_process(line: PipelinePool, batches: int):
    case = case_for(line, batches)
    *others, last = line.run(infer, case)

    assert last.logits == answers_alone(case)
    assert all(other.logits == [None] * batches for other in others)


@pytest.mark.parametrize("is_training", [False, True])
def test_inference_restores_the_training_mode(line: PipelinePool, is_training: bool):
    case = case_for(line)
    answers: list[PredictionDigests] = line.run(infer, case, is_training)

    assert all(answer.is_as_before for answer in answers)
    assert answers[-1].logits == answers_alone(case)


def test_training_continues_after_a_validation(line: PipelinePool):
    case = case_for(line)
    answers: list[PredictionDigests] = line.run(infer, case)
    after, alone = (
        joined([answer.update_after for answer in answers]),
        train_single_process(case_alone(case)),
    )

    assert (after.gradients, after.losses) == (alone.gradients, alone.losses)


def case_alone(case: Case) -> Case:
    return Case(schedule=case.schedule, micro_batches=case.micro_batches)


# Three stages inside blocks for each of two processes, two for each of three.
AROUND = ("layer1/0/bn2", "layer2/0/conv2", "layer2/0/add", "layer3/0/relu1", "layer3/0/conv2")


def case_around(line: PipelinePool, rounds: int, batches: int) -> Case:
    stages = rounds * len(line.pipes)
    starts = starts_of(Case(), *AROUND[: stages - 1])
    return Case(starts, "looped", batches, stages_per_process=rounds)


def rounds_on(line: PipelinePool) -> int:
    return 6 // len(line.pipes)


@pytest.mark.parametrize("turns", [1, 3])
def test_looped_inference_has_the_logits_of_a_single_process(line: PipelinePool, turns: int):
    case = case_around(line, rounds_on(line), turns * len(line.pipes))
    *others, last = line.run(infer_looped, case)

    assert last[-1].logits == answers_alone(case)
    assert all(stage.logits == [None] * case.micro_batches for stages in others for stage in stages)


@pytest.mark.parametrize("batches", range(1, 6))
def test_looped_inference_runs_an_incomplete_group(line: PipelinePool, batches: int):
    case = case_around(line, rounds_on(line), batches)
    *others, last = line.run(predict_looped, case)

    assert last == answers_alone(case)
    assert others == [[None] * batches] * len(others)


@pytest.mark.parametrize("is_training", [False, True])
def test_looped_inference_restores_the_training_mode(line: PipelinePool, is_training: bool):
    case = case_around(line, rounds_on(line), len(line.pipes))
    answers: list[list[PredictionDigests]] = line.run(infer_looped, case, is_training)

    assert all(stage.is_as_before for stages in answers for stage in stages)


def test_looped_training_continues_after_a_validation(line: PipelinePool):
    case = case_around(line, rounds_on(line), 2 * len(line.pipes))
    answers: list[list[PredictionDigests]] = line.run(infer_looped, case)
    turns = zip(*answers, strict=True)
    after = joined([item.update_after for turn in turns for item in turn])
    alone = train_single_process(Case(micro_batches=case.micro_batches))

    assert (after.gradients, after.losses) == (alone.gradients, alone.losses)
