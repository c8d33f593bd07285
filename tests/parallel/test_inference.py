"""Inference through a pipeline of several processes."""

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
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelinePool]:
    with pipeline_pool(request.param, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


def case_for(pool: PipelinePool, batches: int = 6) -> Case:
    starts = starts_of(Case(), *STARTS[: len(pool.pipes) - 1])
    return Case(starts, "sequential", batches)


def single_process_logits(case: Case) -> list[str]:
    network = Trained(Case(), 0).slice.eval()
    with torch.inference_mode():
        return [digest(network(images)[0]) for images, _ in case.batches()]


@pytest.mark.parametrize("batches", [1, 2, 7])
def test_the_last_stage_has_the_logits_of_a_single_process(pool: PipelinePool, batches: int):
    case = case_for(pool, batches)
    *others, last = pool.run(infer, case)

    assert last.logits == single_process_logits(case)
    assert all(other.logits == [None] * batches for other in others)


@pytest.mark.parametrize("is_training", [False, True])
def test_inference_restores_the_training_mode(pool: PipelinePool, is_training: bool):
    case = case_for(pool)
    results: list[PredictionDigests] = pool.run(infer, case, is_training)

    assert all(result.is_as_before for result in results)
    assert results[-1].logits == single_process_logits(case)


def test_training_continues_after_a_validation(pool: PipelinePool):
    case = case_for(pool)
    results: list[PredictionDigests] = pool.run(infer, case)
    after, expected = (
        joined([result.update_after for result in results]),
        train_single_process(single_process_case(case)),
    )

    assert (after.gradients, after.losses) == (expected.gradients, expected.losses)


def single_process_case(case: Case) -> Case:
    return Case(schedule=case.schedule, micro_batches=case.micro_batches)


# Six stages that start inside blocks: three for each of two processes or two for each of three.
LOOPED_STARTS = (
    "layer1/0/bn2",
    "layer2/0/conv2",
    "layer2/0/add",
    "layer3/0/relu1",
    "layer3/0/conv2",
)


def looped_case(pool: PipelinePool, local_stages: int, batches: int) -> Case:
    stages = local_stages * len(pool.pipes)
    starts = starts_of(Case(), *LOOPED_STARTS[: stages - 1])
    return Case(starts, "looped", batches, stages_per_process=local_stages)


def stages_per_process(pool: PipelinePool) -> int:
    return 6 // len(pool.pipes)


@pytest.mark.parametrize("groups", [1, 3])
def test_looped_inference_has_the_logits_of_a_single_process(pool: PipelinePool, groups: int):
    case = looped_case(pool, stages_per_process(pool), groups * len(pool.pipes))
    *others, last = pool.run(infer_looped, case)

    assert last[-1].logits == single_process_logits(case)
    assert all(stage.logits == [None] * case.micro_batches for stages in others for stage in stages)


@pytest.mark.parametrize("batches", range(1, 6))
def test_looped_inference_runs_an_incomplete_group(pool: PipelinePool, batches: int):
    case = looped_case(pool, stages_per_process(pool), batches)
    *others, last = pool.run(predict_looped, case)

    assert last == single_process_logits(case)
    assert others == [[None] * batches] * len(others)


@pytest.mark.parametrize("is_training", [False, True])
def test_looped_inference_restores_the_training_mode(pool: PipelinePool, is_training: bool):
    case = looped_case(pool, stages_per_process(pool), len(pool.pipes))
    results: list[list[PredictionDigests]] = pool.run(infer_looped, case, is_training)

    assert all(stage.is_as_before for stages in results for stage in stages)


def test_looped_training_continues_after_a_validation(pool: PipelinePool):
    case = looped_case(pool, stages_per_process(pool), 2 * len(pool.pipes))
    results: list[list[PredictionDigests]] = pool.run(infer_looped, case)
    in_order = [item for stages in zip(*results, strict=True) for item in stages]
    after = joined([item.update_after for item in in_order])
    expected = train_single_process(Case(micro_batches=case.micro_batches))

    assert (after.gradients, after.losses) == (expected.gradients, expected.losses)
