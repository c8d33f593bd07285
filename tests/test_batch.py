"""Which predictions count as correct."""

import torch

from convoy.batch import MixedTargets
from convoy.parallel.executor import micro_batch_result

LABELS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0]])
WEIGHTS = torch.tensor([[0.5, 0.2, 0.4, 1.0], [0.3, 0.7, 0.4, 0.0], [0.2, 0.1, 0.2, 0.0]])


def test_predictions_of_a_single_label_are_correct():
    logits = torch.nn.functional.one_hot(torch.tensor([3, 1, 0]), 10).float()
    result = micro_batch_result(logits, torch.tensor([3, 1, 2]), torch.tensor(0.5))

    assert (int(result.correct), result.samples, float(result.loss)) == (2, 3, 0.5)


def test_predictions_of_the_main_label_are_correct():
    predictions = torch.tensor([1, 6, 3, 8])  # the second is a label with a larger weight
    logits = torch.nn.functional.one_hot(predictions, 10).float()
    result = micro_batch_result(logits, MixedTargets(LABELS, WEIGHTS), torch.tensor(0.25))

    assert (int(result.correct), result.samples, float(result.loss)) == (2, 4, 0.25)
