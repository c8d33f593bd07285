"""Which answer counts as right."""

import torch

from convoy.batch import Mixed, expected
from convoy.parallel.executor import micro_batch_result

LABELS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0]])
SHARES = torch.tensor([[0.5, 0.2, 0.4, 1.0], [0.3, 0.7, 0.4, 0.0], [0.2, 0.1, 0.2, 0.0]])


def test_a_lone_label_is_expected():
    labels = torch.tensor([3, 1, 2])

    assert expected(labels) is labels


def test_of_several_labels_its_own_is_expected():
    assert expected(Mixed(LABELS, SHARES)).tolist() == [1, 2, 3, 4]


def test_answers_are_right_that_name_the_own_label():
    answers = torch.tensor([1, 6, 3, 8])  # the second names a heavier one
    logits = torch.nn.functional.one_hot(answers, 10).float()
    found = micro_batch_result(logits, Mixed(LABELS, SHARES), torch.tensor(0.25))

    assert (int(found.correct), found.samples, float(found.loss)) == (2, 4, 0.25)
