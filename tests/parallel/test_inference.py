"""Forward-only passes through a line of processes."""

from collections.abc import Iterator

import pytest
import torch
from lines import Answers, Case, Crew, Trained, crew, digest, infer, joined, starts_of, train_alone

pytestmark = pytest.mark.processes

STARTS = ("layer2/0/bn2", "layer3/0/relu1")


@pytest.fixture(scope="module", params=[2, 3])
def line(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Crew]:
    with crew(request.param, tmp_path_factory.mktemp("line")) as made:
        yield made


def case_for(line: Crew, batches: int = 6) -> Case:
    starts = starts_of(Case(), *STARTS[: len(line.pipes) - 1])
    return Case(starts, "sequential", batches)


def answers_alone(case: Case) -> list[str]:
    network = Trained(Case(), 0).slice.eval()
    with torch.inference_mode():
        return [digest(network(images)[0]) for images, _ in case.batches()]


@pytest.mark.parametrize("batches", [1, 2, 7])
def test_logits_arrive_at_the_last_stage_as_one_process_makes_them(line: Crew, batches: int):
    case = case_for(line, batches)
    *others, last = line.run(infer, case)

    assert last.logits == answers_alone(case)
    assert all(one.logits == [None] * batches for one in others)


@pytest.mark.parametrize("is_training", [False, True])
def test_the_network_is_left_as_it_was(line: Crew, is_training: bool):
    case = case_for(line)
    answers: list[Answers] = line.run(infer, case, is_training)

    assert all(one.is_as_before for one in answers)
    assert answers[-1].logits == answers_alone(case)


def test_training_goes_on_after_a_validation(line: Crew):
    case = case_for(line)
    answers: list[Answers] = line.run(infer, case)
    after, alone = joined([one.update_after for one in answers]), train_alone(case_alone(case))

    assert (after.gradients, after.losses) == (alone.gradients, alone.losses)


def case_alone(case: Case) -> Case:
    return Case(schedule=case.schedule, micro_batches=case.micro_batches)
